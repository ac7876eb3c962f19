-- The Nexmark queries in Flink SQL. The view bid has a column proctime too.

-- q0
SELECT auction, bidder, price, CAST(`dateTime` AS TIMESTAMP(3)), extra FROM bid;

-- q1
SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)), CAST(`dateTime` AS TIMESTAMP(3)), extra FROM bid;

-- q2
SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0;

-- q3
SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA');

-- q4
SELECT category, AVG(final) FROM (
    SELECT MAX(B.price) AS final, A.category FROM auction A JOIN bid B
    ON A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
    GROUP BY A.id, A.category
) GROUP BY category;

-- q5
SELECT C.auction, C.num FROM (
    SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end
) C JOIN (
    SELECT MAX(num) AS num, window_start, window_end FROM (
        SELECT auction, COUNT(*) AS num, window_start, window_end
        FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
        GROUP BY auction, window_start, window_end
    ) GROUP BY window_start, window_end
) M ON C.window_start = M.window_start AND C.window_end = M.window_end AND C.num = M.num;

-- q7
SELECT B.auction, B.price, B.bidder, CAST(B.`dateTime` AS TIMESTAMP(3)), B.extra FROM bid B JOIN (
    SELECT MAX(price) AS price, window_time FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`),
        INTERVAL '10' SECOND))
    GROUP BY window_start, window_end, window_time
) M ON B.price = M.price
AND B.`dateTime` BETWEEN M.window_time - INTERVAL '9.999' SECOND AND M.window_time + INTERVAL '0.001' SECOND;

-- q8
SELECT P.id, P.name, P.window_start FROM (
    SELECT id, name, window_start, window_end FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(`dateTime`),
        INTERVAL '10' SECOND))
    GROUP BY id, name, window_start, window_end
) P JOIN (
    SELECT seller, window_start, window_end FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(`dateTime`),
        INTERVAL '10' SECOND))
    GROUP BY seller, window_start, window_end
) A ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end;

-- q9
SELECT id, itemName, description, initialBid, reserve, CAST(`dateTime` AS TIMESTAMP(3)),
    CAST(expires AS TIMESTAMP(3)), seller, category, extra,
       auction, bidder, price, CAST(bid_time AS TIMESTAMP(3)), bid_extra FROM (
    SELECT A.*, B.auction, B.bidder, B.price, B.`dateTime` AS bid_time, B.extra AS bid_extra,
           ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.`dateTime`) AS n
    FROM auction A JOIN bid B ON A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
) WHERE n <= 1;

-- q11
SELECT bidder, COUNT(*), window_start, window_end
FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end;

-- q12
SELECT bidder, COUNT(*), window_start, window_end
FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(proctime), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end;

-- q14
SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)),
       CASE WHEN HOUR(CAST(`dateTime` AS TIMESTAMP(3))) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN HOUR(CAST(`dateTime` AS TIMESTAMP(3))) <= 6
                OR HOUR(CAST(`dateTime` AS TIMESTAMP(3))) >= 20 THEN 'nightTime'
             ELSE 'otherTime' END,
       CAST(`dateTime` AS TIMESTAMP(3)), extra, CAST(CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c',
           '')) AS BIGINT)
FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000;

-- q15
SELECT DATE_FORMAT(`dateTime`, 'yyyy-MM-dd'), COUNT(*) FILTER (WHERE TRUE) AS total_bids,
    COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
    COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
    COUNT(DISTINCT bidder) FILTER (WHERE TRUE) AS total_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
    COUNT(DISTINCT auction) FILTER (WHERE TRUE) AS total_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
FROM bid GROUP BY DATE_FORMAT(`dateTime`, 'yyyy-MM-dd');

-- q16
SELECT channel, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd'), MAX(DATE_FORMAT(`dateTime`, 'HH:mm')),
    COUNT(*) FILTER (WHERE TRUE) AS total_bids, COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
    COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
    COUNT(DISTINCT bidder) FILTER (WHERE TRUE) AS total_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
    COUNT(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
    COUNT(DISTINCT auction) FILTER (WHERE TRUE) AS total_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
    COUNT(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
FROM bid GROUP BY channel, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd');

-- q17
SELECT auction, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd'), COUNT(*) FILTER (WHERE TRUE) AS total_bids,
    COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
    COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids, MIN(price), MAX(price), AVG(price), SUM(price)
FROM bid GROUP BY auction, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd');

-- q18
SELECT auction, bidder, price, channel, url, CAST(`dateTime` AS TIMESTAMP(3)) AS `dateTime`, extra FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS n FROM bid
) WHERE n <= 1;

-- q19
SELECT auction, bidder, price, channel, url, CAST(`dateTime` AS TIMESTAMP(3)) AS `dateTime`, extra, n FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, `dateTime`) AS n FROM bid
) WHERE n <= 10;

-- q20
SELECT B.auction, B.bidder, B.price, B.channel, B.url, CAST(B.`dateTime` AS TIMESTAMP(3)), B.extra, A.itemName,
    A.description, A.initialBid, A.reserve, CAST(A.`dateTime` AS TIMESTAMP(3)), CAST(A.expires AS TIMESTAMP(3)),
    A.seller, A.category, A.extra
FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10;

-- q21
SELECT auction, bidder, price, channel,
       CASE LOWER(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
            WHEN 'baidu' THEN '3' ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END
FROM bid WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL OR LOWER(channel) IN ('apple', 'google',
    'facebook', 'baidu');

-- q22
SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3), SPLIT_INDEX(url, '/', 4),
       SPLIT_INDEX(url, '/', 5) FROM bid;

-- q23
SELECT B.bidder, B.price, B.channel, B.url, B.extra, P.id, P.name, P.emailAddress, P.creditCard, P.city,
       P.state, P.extra, A.itemName, A.description, A.initialBid, A.reserve, CAST(A.`dateTime` AS TIMESTAMP(3)),
           CAST(A.expires AS TIMESTAMP(3)), A.seller, A.category, A.extra
FROM bid B JOIN person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder;
