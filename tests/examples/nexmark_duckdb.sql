-- The Nexmark queries in the SQL of DuckDB, over the views person, auction, bid and side_input, and the winning bids.

-- winners
SELECT * FROM (
    SELECT a.*, b.auction, b.bidder, b.price, b.dateTime AS bid_dateTime, b.extra AS bid_extra,
           row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.dateTime, b.place) AS n
    FROM auction a JOIN bid b ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
) WHERE n = 1;

-- q0
SELECT auction, bidder, price, dateTime, extra FROM bid;

-- q1
SELECT auction, bidder, (price * 0.908)::DECIMAL(23, 3) AS price, dateTime, extra FROM bid;

-- q2
SELECT auction, price FROM bid WHERE auction % 123 = 0;

-- q3
SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA');

-- q4
SELECT category AS id, sum(price)::BIGINT // count(*) AS final FROM winners GROUP BY category;

-- q5
WITH counts AS (
    SELECT auction, count(*) AS num, start FROM (
        SELECT auction, unnest([
            time_bucket(INTERVAL 2 SECOND, dateTime) - i * INTERVAL 2 SECOND FOR i IN range(5)
        ]) AS start FROM bid
    ) GROUP BY auction, start
) SELECT auction, num FROM counts c WHERE num = (SELECT max(num) FROM counts d WHERE d.start = c.start);

-- q6
SELECT seller, id, (sum(price) OVER w)::BIGINT // count(*) OVER w AS avg_price FROM winners
WINDOW w AS (PARTITION BY seller ORDER BY bid_dateTime, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW);

-- q7
SELECT b.auction, b.price, b.bidder, b.dateTime, b.extra
FROM bid b JOIN (SELECT max(price) AS price, time_bucket(INTERVAL 10 SECOND,
    dateTime) AS start FROM bid GROUP BY start) m
ON b.price = m.price AND b.dateTime BETWEEN m.start AND m.start + INTERVAL 10 SECOND;

-- q8
SELECT DISTINCT p.id, p.name, p.stime
FROM (SELECT *, time_bucket(INTERVAL 10 SECOND, dateTime) AS stime FROM person) p JOIN (SELECT *,
    time_bucket(INTERVAL 10 SECOND, dateTime) AS stime FROM auction) a
ON p.id = a.seller AND p.stime = a.stime;

-- q9
SELECT * EXCLUDE (n, place) FROM winners;

-- q10
SELECT auction, bidder, price, dateTime, extra,
       strftime(dateTime, '%Y-%m-%d') AS dt, strftime(dateTime, '%H:%M') AS hm FROM bid;

-- q11
SELECT bidder, count(*) AS bid_count, min(dateTime) AS starttime,
       max(dateTime) + INTERVAL 10 SECOND AS endtime
FROM (
    SELECT *, sum(is_new::INT) OVER (PARTITION BY bidder ORDER BY dateTime, place) AS session FROM (
        SELECT *, dateTime > lag(dateTime, 1, '-infinity'::TIMESTAMP) OVER (
            PARTITION BY bidder ORDER BY dateTime, place) + INTERVAL 10 SECOND AS is_new
        FROM bid
    )
) GROUP BY bidder, session;

-- q12
SELECT bidder, count(*) AS bid_count FROM bid GROUP BY bidder;

-- q13
SELECT auction, bidder, price, dateTime, s.value FROM bid JOIN side_input s ON auction % 10000 = s.key;

-- q14
SELECT auction, bidder, (price * 0.908)::DECIMAL(23, 3) AS price,
       CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END
           AS bidTimeType,
       dateTime, extra, len(extra) - len(replace(extra, 'c', '')) AS c_counts
FROM bid WHERE price * 0.908 > 1000000 AND price * 0.908 < 50000000;

-- q15
SELECT strftime(dateTime, '%Y-%m-%d') AS day, count(*) FILTER (true) AS total_bids,
    count(*) FILTER (price < 10000) AS rank1_bids,
    count(*) FILTER (price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (price >= 1000000) AS rank3_bids, count(DISTINCT bidder) FILTER (true) AS total_bidders,
    count(DISTINCT bidder) FILTER (price < 10000) AS rank1_bidders,
    count(DISTINCT bidder) FILTER (price >= 10000 AND price < 1000000) AS rank2_bidders,
    count(DISTINCT bidder) FILTER (price >= 1000000) AS rank3_bidders,
    count(DISTINCT auction) FILTER (true) AS total_auctions,
    count(DISTINCT auction) FILTER (price < 10000) AS rank1_auctions,
    count(DISTINCT auction) FILTER (price >= 10000 AND price < 1000000) AS rank2_auctions,
    count(DISTINCT auction) FILTER (price >= 1000000) AS rank3_auctions FROM bid GROUP BY day;

-- q16
SELECT channel, strftime(dateTime, '%Y-%m-%d') AS day, max(strftime(dateTime, '%H:%M')) AS minute,
    count(*) FILTER (true) AS total_bids, count(*) FILTER (price < 10000) AS rank1_bids,
    count(*) FILTER (price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (price >= 1000000) AS rank3_bids, count(DISTINCT bidder) FILTER (true) AS total_bidders,
    count(DISTINCT bidder) FILTER (price < 10000) AS rank1_bidders,
    count(DISTINCT bidder) FILTER (price >= 10000 AND price < 1000000) AS rank2_bidders,
    count(DISTINCT bidder) FILTER (price >= 1000000) AS rank3_bidders,
    count(DISTINCT auction) FILTER (true) AS total_auctions,
    count(DISTINCT auction) FILTER (price < 10000) AS rank1_auctions,
    count(DISTINCT auction) FILTER (price >= 10000 AND price < 1000000) AS rank2_auctions,
    count(DISTINCT auction) FILTER (price >= 1000000) AS rank3_auctions
FROM bid GROUP BY channel, day;

-- q17
SELECT auction, strftime(dateTime, '%Y-%m-%d') AS day, count(*) FILTER (true) AS total_bids,
    count(*) FILTER (price < 10000) AS rank1_bids,
    count(*) FILTER (price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (price >= 1000000) AS rank3_bids, min(price) AS min_price, max(price) AS max_price,
       sum(price)::BIGINT // count(*) AS avg_price, sum(price)::BIGINT AS sum_price
FROM bid GROUP BY auction, day;

-- q18
SELECT auction, bidder, price, channel, url, dateTime, extra FROM (
    SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC, place DESC) AS n FROM bid
) WHERE n = 1;

-- q19
SELECT auction, bidder, price, channel, url, dateTime, extra, n AS rank_number FROM (
    SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime, place) AS n FROM bid
) WHERE n <= 10;

-- q20
SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.dateTime AS bid_dateTime, b.extra AS bid_extra, a.itemName,
    a.description, a.initialBid, a.reserve, a.dateTime AS auction_dateTime, a.expires, a.seller, a.category,
    a.extra AS auction_extra
FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10;

-- q21
SELECT * FROM (
    SELECT auction, bidder, price, channel,
           CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
           WHEN 'baidu' THEN '3' ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END
               AS channel_id
    FROM bid
) WHERE channel_id IS NOT NULL;

-- q22
SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
       split_part(url, '/', 6) AS dir3
FROM bid;

-- q23
SELECT b.bidder, b.price, b.channel, b.url, b.extra AS bid_extra, p.id AS person_id, p.name, p.emailAddress,
       p.creditCard, p.city, p.state, p.extra AS person_extra, a.itemName, a.description, a.initialBid, a.reserve,
           a.dateTime AS auction_dateTime, a.expires, a.seller, a.category, a.extra AS auction_extra
FROM bid b JOIN person p ON p.id = b.bidder JOIN auction a ON a.seller = b.bidder;
