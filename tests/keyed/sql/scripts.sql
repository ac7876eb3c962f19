-- sold
CREATE STREAM sales (title STRING KEY, tickets INT) WITH (KAFKA_TOPIC = '{sales}', VALUE_FORMAT = 'JSON');
CREATE TABLE sold WITH (KAFKA_TOPIC = '{sold}') AS
    SELECT title, SUM(tickets) AS n FROM sales GROUP BY title HAVING SUM(tickets) < 10;

-- rows_to_a_topic
CREATE STREAM "{other}" (title STRING KEY, n INT) WITH (FORMAT = 'JSON');
CREATE STREAM sent WITH (KAFKA_TOPIC = '{target}', FORMAT = 'JSON') AS SELECT title, n FROM "{other}";

-- sales_with_films_by_time
CREATE STREAM sales (title STRING KEY, n INT) WITH (KAFKA_TOPIC = '{sales}', VALUE_FORMAT = 'JSON');
CREATE TABLE films (title STRING PRIMARY KEY, genre STRING, at BIGINT)
    WITH (KAFKA_TOPIC = '{films}', VALUE_FORMAT = 'JSON', TIMESTAMP = 'at');
CREATE STREAM joined AS SELECT sales.title AS title, n, genre
    FROM sales LEFT JOIN films ON sales.title = films.title;

-- numbers
CREATE STREAM s (k STRING KEY, n INT) WITH (KAFKA_TOPIC = '{source}', VALUE_FORMAT = 'JSON');
CREATE STREAM o AS SELECT k, n FROM s;

-- decimals_copied
CREATE STREAM s (id BIGINT KEY, a STRING, b DECIMAL(4, 2)) WITH (KAFKA_TOPIC = '{source}', {formats});
CREATE STREAM t WITH (KAFKA_TOPIC = '{target}', RETENTION_MS = -1) AS SELECT * FROM s;

-- counts_of_hours_and_sessions
CREATE STREAM s (id STRING KEY, n INT) WITH (KAFKA_TOPIC = '{source}', VALUE_FORMAT = 'JSON');
CREATE TABLE hours WITH (KAFKA_TOPIC = '{hours}') AS
    SELECT id, COUNT(*) AS c FROM s WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY id;
CREATE TABLE sessions WITH (KAFKA_TOPIC = '{sessions}') AS
    SELECT id, COUNT(*) AS c FROM s WINDOW SESSION (1 MINUTE) GROUP BY id;

-- windows_read_again
CREATE STREAM w (id STRING KEY, c INT)
    WITH (KAFKA_TOPIC = '{}', VALUE_FORMAT = 'JSON', {});
CREATE STREAM t AS SELECT id, WINDOWSTART AS s, WINDOWEND AS e, c FROM w WHERE c = 2;

-- all_types_written
CREATE STREAM a (id INT KEY, {types}) WITH (KAFKA_TOPIC = '{source}', VALUE_FORMAT = 'JSON');
CREATE STREAM b WITH (KAFKA_TOPIC = '{coded}', FORMAT = '{format}', RETENTION_MS = -1) AS SELECT * FROM a;

-- all_types_read
CREATE STREAM a (id INT KEY, {types}) WITH (KAFKA_TOPIC = '{coded}', FORMAT = '{format}');
CREATE STREAM b WITH (RETENTION_MS = -1, KAFKA_TOPIC = '{plain}', KEY_FORMAT = 'KAFKA', VALUE_FORMAT = 'JSON')
    AS SELECT * FROM a;

-- avro_read
CREATE STREAM a (id INT KEY, x INT) WITH (KAFKA_TOPIC = '{source}', VALUE_FORMAT = 'AVRO');
CREATE STREAM b AS SELECT * FROM a;

-- numbers_with_times
CREATE STREAM a (id STRING KEY, x BIGINT, at TIMESTAMP)
    WITH (KAFKA_TOPIC = '{source}', VALUE_FORMAT = 'JSON', TIMESTAMP = 'at');
CREATE STREAM b AS SELECT id, x FROM a;

-- headers_and_offsets
CREATE STREAM a (x INT, h BYTES HEADER('h')) WITH (KAFKA_TOPIC = '{source}', VALUE_FORMAT = 'JSON');
CREATE STREAM b AS SELECT x, h, ROWPARTITION AS p, ROWOFFSET AS o, ROWTIME AS t FROM a;

-- sales_with_films
CREATE STREAM sales (title STRING KEY, n INT) WITH (KAFKA_TOPIC = '{sales}', VALUE_FORMAT = 'JSON');
CREATE TABLE films (title STRING PRIMARY KEY, genre STRING) WITH (FORMAT = 'JSON');
CREATE STREAM joined AS SELECT sales.title AS title, n, genre FROM sales JOIN films ON sales.title = films.title;

-- from_the_latest
SET 'auto.offset.reset' = 'latest';
CREATE STREAM sales (title STRING KEY, n INT) WITH (KAFKA_TOPIC = '{sales}', VALUE_FORMAT = 'JSON');
CREATE TABLE films (title STRING PRIMARY KEY, genre STRING) WITH (KAFKA_TOPIC = '{films}', VALUE_FORMAT = 'JSON');
CREATE STREAM joined AS SELECT sales.title AS title, n, genre FROM sales JOIN films ON sales.title = films.title;

-- two_streams_into_one
CREATE STREAM a (id STRING KEY, x INT) WITH (KAFKA_TOPIC = '{first}', VALUE_FORMAT = 'JSON');
CREATE STREAM b (id STRING KEY, x INT) WITH (KAFKA_TOPIC = '{second}', VALUE_FORMAT = 'JSON');
CREATE STREAM both WITH (KAFKA_TOPIC = '{target}', PARTITIONS = 3, RETENTION_MS = -1) AS SELECT * FROM a;
INSERT INTO both SELECT * FROM b;
CREATE TABLE counts AS SELECT id, COUNT(*) AS n FROM both GROUP BY id;

-- all_kinds_over_topics
CREATE STREAM sales (id BIGINT KEY, title STRING, tickets INT, at BIGINT, kind BYTES HEADER('kind'))
    WITH (KAFKA_TOPIC = '{sales}', FORMAT = '{format}', TIMESTAMP = 'at');
CREATE TABLE films (title STRING PRIMARY KEY, genre STRING) WITH (KAFKA_TOPIC = '{films}', VALUE_FORMAT = 'JSON');
CREATE TABLE sold WITH (KAFKA_TOPIC = '{sold}', RETENTION_MS = -1) AS
    SELECT title, COUNT(*) AS n, SUM(tickets) AS tickets FROM sales GROUP BY title HAVING SUM(tickets) < 10;
CREATE TABLE hourly AS SELECT title, COUNT(*) AS n FROM sales
    WINDOW TUMBLING (SIZE 1 HOUR, GRACE PERIOD 0 SECONDS) GROUP BY title EMIT FINAL;
CREATE STREAM read AS SELECT s.title AS title, id, kind, ROWTIME AS time, genre
    FROM sales s LEFT JOIN films f ON s.title = f.title;
CREATE STREAM places AS SELECT id, kind, ROWPARTITION AS part, ROWOFFSET AS place FROM sales;

-- bound_streams
CREATE STREAM doubled (title STRING KEY, price INT, tags ARRAY<STRING>) WITH (FORMAT = 'JSON');
CREATE STREAM titles (title STRING KEY, name STRING) WITH (FORMAT = 'JSON');
CREATE TABLE named AS SELECT title, LATEST_BY_OFFSET(name) AS name FROM titles GROUP BY title;
CREATE TABLE sold AS SELECT title, COUNT(*) AS n, SUM(price) AS income FROM doubled GROUP BY title;
CREATE TABLE hourly AS SELECT title, COUNT(*) AS n FROM doubled
    WINDOW TUMBLING (SIZE 1 HOUR, GRACE PERIOD 0 SECONDS) GROUP BY title EMIT FINAL;
CREATE STREAM sales AS SELECT s.title AS title, price, n.name AS name
    FROM doubled s LEFT JOIN named n ON s.title = n.title;

-- timed_sales
CREATE STREAM sales (title STRING KEY, price INT, at BIGINT) WITH (FORMAT = 'JSON', TIMESTAMP = 'at');
CREATE TABLE sold AS SELECT title, COUNT(*) AS n FROM sales GROUP BY title;

-- a_function_called_twice
CREATE STREAM s (k STRING KEY, tags ARRAY<STRING>) WITH (FORMAT = 'JSON');
CREATE STREAM one AS SELECT k, LAST_TAG(tags) AS t, tags FROM s;
CREATE STREAM two AS SELECT k, LAST_TAG(tags) AS t, tags FROM one;

-- lists_and_their_sizes
CREATE STREAM s (k STRING KEY, a INT) WITH (FORMAT = 'JSON');
CREATE TABLE lists AS SELECT k, GATHERED(a) AS l FROM s GROUP BY k;
CREATE TABLE sizes AS SELECT ARRAY_LENGTH(l) AS size, COUNT(*) AS n FROM lists GROUP BY ARRAY_LENGTH(l);

-- failing_and_late
CREATE STREAM s (k STRING KEY, n INT) WITH (FORMAT = 'JSON');
CREATE STREAM u AS SELECT k, CAST(k AS INT) + n AS n FROM s;
CREATE TABLE t AS SELECT k, COUNT(*) AS n FROM s WINDOW TUMBLING (SIZE 1 SECOND, GRACE PERIOD 0 SECONDS) GROUP BY k;

-- decoded_by_workers
CREATE STREAM s (id BIGINT KEY, title STRING, at BIGINT, kind BYTES HEADER('kind'))
    WITH (FORMAT = 'JSON', TIMESTAMP = 'at');
CREATE TABLE t (title STRING PRIMARY KEY, genre STRING) WITH (VALUE_FORMAT = 'JSON');
CREATE STREAM places AS SELECT id, kind, ROWPARTITION AS part, ROWOFFSET AS place FROM s;
CREATE STREAM named AS SELECT s.title AS title, id, genre FROM s LEFT JOIN t ON s.title = t.title;

-- times_of_a_day
CREATE STREAM s (k TIME KEY, t TIME, u STRUCT<m MAP<STRING, TIME>, l ARRAY<TIME>>) WITH (FORMAT = 'JSON');
        CREATE TABLE latest AS SELECT k, LATEST_BY_OFFSET(t) AS t, LATEST_BY_OFFSET(u) AS u FROM s GROUP BY k;
        CREATE TABLE w AS SELECT k, MAX(t) AS t FROM s WINDOW TUMBLING (SIZE 1 SECOND) GROUP BY k;
        CREATE TABLE first AS SELECT k, t FROM s QUALIFY row_number() OVER (PARTITION BY k ORDER BY t) <= 1;
        CREATE TABLE given (k TIME PRIMARY KEY, t TIME) WITH (FORMAT = 'JSON');
        CREATE TABLE copied AS SELECT k, t FROM given;
