-- The Nexmark queries in Spark SQL, over the views person, auction and bid, with a watermark of 4 s, and static_side.

-- q0
SELECT auction, bidder, price, `dateTime`, extra FROM bid;

-- q1
SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, `dateTime`, extra FROM bid;

-- q2
SELECT auction, price FROM bid WHERE auction % 123 = 0;

-- q3
SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA');

-- q5
SELECT explode(hottest) AS auction, num FROM (
    SELECT max(num) AS num, max_by(auctions, num) AS hottest FROM (
        SELECT collect_list(auction) AS auctions, num, w FROM (
            SELECT auction, count(*) AS num, window(`dateTime`, '10 seconds', '2 seconds') AS w
            FROM bid GROUP BY auction, window(`dateTime`, '10 seconds', '2 seconds')
        ) GROUP BY num, w
    ) GROUP BY w
);

-- q8
SELECT P.id, P.name, P.w.start AS stime FROM (
    SELECT id, name, window(`dateTime`, '10 seconds') AS w FROM person
    GROUP BY id, name, window(`dateTime`, '10 seconds')
) P JOIN (
    SELECT seller, window(`dateTime`, '10 seconds') AS w FROM auction
    GROUP BY seller, window(`dateTime`, '10 seconds')
) A ON P.id = A.seller AND P.w = A.w;

-- q11
SELECT bidder, count(*) AS bid_count, session_window.start AS starttime, session_window.end AS endtime
FROM bid GROUP BY bidder, session_window(`dateTime`, '10 seconds');

-- q13
SELECT auction, bidder, price, `dateTime`, value FROM bid JOIN static_side ON auction % 10000 = key;

-- q14
SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price,
       CASE WHEN hour(`dateTime`) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN hour(`dateTime`) <= 6 OR hour(`dateTime`) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS kind,
       `dateTime`, extra, CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT) AS c_counts
FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;

-- q17
SELECT auction, date_format(`dateTime`, 'yyyy-MM-dd') AS day, count_if(TRUE) AS total_bids,
    count_if(price < 10000) AS rank1_bids, count_if(price >= 10000 AND price < 1000000) AS rank2_bids,
    count_if(price >= 1000000) AS rank3_bids, min(price) AS least, max(price) AS most,
       sum(price) div count(*) AS average, sum(price) AS total
FROM bid GROUP BY auction, date_format(`dateTime`, 'yyyy-MM-dd');

-- q18
SELECT auction, bidder, last.price, last.channel, last.url, last.`dateTime`, last.extra FROM (
    SELECT auction, bidder, max_by(struct(price, channel, url, `dateTime`, extra), `dateTime`) AS last
    FROM bid GROUP BY bidder, auction
);

-- q20
SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.`dateTime` AS bid_time, B.extra AS bid_extra,
       A.itemName, A.description, A.initialBid, A.reserve, A.`dateTime`, A.expires, A.seller, A.category,
       A.extra
FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10;

-- q21
SELECT * FROM (
    SELECT auction, bidder, price, channel,
           CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
                WHEN 'baidu' THEN '3'
                ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END AS channel_id
    FROM bid
) WHERE channel_id IS NOT NULL;

-- q22
SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
       split_part(url, '/', 6) AS dir3 FROM bid;

-- q23
SELECT B.bidder, B.price, B.channel, B.url, B.extra AS bid_extra, P.id AS person_id, P.name, P.emailAddress,
       P.creditCard, P.city, P.state, P.extra AS person_extra, A.itemName, A.description, A.initialBid,
       A.reserve, A.`dateTime`, A.expires, A.seller, A.category, A.extra
FROM bid B JOIN person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder;
