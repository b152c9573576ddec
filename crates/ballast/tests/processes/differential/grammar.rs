//! The grammar of random commands.

use fastrand::Rng;
use std::cell::Cell;

/// Command lines. Uppercase words are literal, `{a|b}` is one of several, `[x]` is optional, `x*`
/// is one or more, and lowercase names are expanded by [`Grammar::word`].
const GRAMMAR: &[&str] = &[
    "GET key",
    "GET key",
    "GET key",
    "SET key value",
    "SET key value",
    "SET key number",
    "SET key value [{NX|XX|IFEQ value}] [GET] [{EX seconds|PX millis|EXAT second|PXAT milli|KEEPTTL}]",
    "SETNX key value",
    "SETEX key seconds value",
    "PSETEX key millis value",
    "GETSET key value",
    "GETDEL key",
    "GETEX key [{EX seconds|PX millis|EXAT second|PXAT milli|PERSIST}]",
    "MGET key*",
    "MSET pair*",
    "MSETNX pair*",
    "MSETEX 1 pair [{NX|XX}] [{EX seconds|PX millis|EXAT second|PXAT milli|KEEPTTL}]",
    "MSETEX {2|3|0|-1|number} pair pair [{NX|XX}] [{EX seconds|PX millis|KEEPTTL}]",
    "DELIFEQ key value",
    "APPEND key value",
    "STRLEN key",
    "GETRANGE key index index",
    "SUBSTR key index index",
    "SETRANGE key index value",
    "SETRANGE key index value",
    "INCR key",
    "DECR key",
    "INCRBY key number",
    "DECRBY key number",
    "INCRBYFLOAT key float",
    "INCRBYFLOAT key float",
    "INCRBYFLOAT key float",
    "LCS key key",
    "LCS key key [{LEN|IDX}] [MINMATCHLEN index] [WITHMATCHLEN]",
    "SETBIT key bit {0|1}",
    "GETBIT key bit",
    "BITCOUNT key [index] [index]",
    "BITCOUNT key index index {BIT|BYTE}",
    "BITPOS key {0|1} [index] [index]",
    "BITPOS key {0|1} index index {BIT|BYTE}",
    "BITOP {AND|OR|XOR} key key*",
    "BITOP NOT key key",
    "BITFIELD key field*",
    "BITFIELD key field*",
    "BITFIELD_RO key get*",
    "HSET hash field-pair*",
    "HSET hash field-pair*",
    "HSET hash field-pair*",
    "HMSET hash field-pair*",
    "HSETNX hash name value",
    "HGET hash name",
    "HMGET hash name*",
    "HMGET hash name* name* name* name* name*",
    "HGETALL hash",
    "HKEYS hash",
    "HVALS hash",
    "HLEN hash",
    "HEXISTS hash name",
    "HSTRLEN hash name",
    "HDEL hash name",
    "HDEL hash name* name* name* name*",
    "HGETDEL hash FIELDS {1|2|0|x} name*",
    "HGETDEL hash FIELDS 1 name",
    "{HEXPIRE|HEXPIRE} hash seconds [{NX|XX|GT|LT}] FIELDS {1|1|2|0|x} name [name]",
    "HPEXPIRE hash millis [{NX|XX|GT|LT}] [{XX|GT|LT}] FIELDS 1 name",
    "HEXPIREAT hash second [{NX|XX|GT|LT}] FIELDS {1|2} name [name]",
    "HPEXPIREAT hash milli [{NX|XX|GT|LT}] FIELDS {1|2} name [name]",
    "HPEXPIREAT hash 33177117420123 FIELDS 3 name name name",
    "HPEXPIREAT hash 33177117420500 {NX|XX|GT|LT} FIELDS 3 name name name",
    "{HTTL|HPTTL|HEXPIRETIME|HPEXPIRETIME} hash FIELDS {1|1|2|0|x} name [name]",
    "HPEXPIRETIME hash FIELDS 4 name name name name",
    "HPEXPIRETIME hash FIELDS 9 name name name name name name name name name",
    "HPERSIST hash FIELDS {1|1|2|0|x} name [name]",
    "HGETEX hash [{EX seconds|PX millis|EXAT second|PXAT milli|PERSIST}] FIELDS {1|2} name [name]",
    "HGETEX hash PXAT {33177117420123|1} FIELDS 2 name name",
    "HSETEX hash [{NX|XX}] [{FNX|FXX}] [{EX seconds|PX millis|EXAT second|PXAT milli|KEEPTTL}] FIELDS {1|2} field-pair [field-pair]",
    "HSETEX hash [{FNX|FXX}] [{PXAT 33177117420123|KEEPTTL}] FIELDS 2 field-pair field-pair",
    "HINCRBY hash name number",
    "HINCRBY hash name {1|-5|100}",
    "HINCRBYFLOAT hash name float",
    "HRANDFIELD hash",
    "HRANDFIELD hash sample [WITHVALUES]",
    "HSCAN hash {0|0|5|x} [MATCH pattern] [COUNT index] [NOVALUES]",
    "SADD set name*",
    "SADD set name*",
    "SADD set name* value*",
    "SADD set number*",
    "SREM set name*",
    "SREM set name* name* name* name*",
    "SISMEMBER set name",
    "SMISMEMBER set name*",
    "SCARD set",
    "SMEMBERS set",
    "SMOVE set set name",
    "SPOP set {100000|0|-1|x}",
    "SRANDMEMBER set",
    "SRANDMEMBER set sample",
    "SSCAN set {0|0|5|x} [MATCH pattern] [COUNT index] [NOVALUES]",
    "{SINTER|SUNION|SDIFF} set*",
    "{SINTER|SUNION|SDIFF} set set set",
    "{SINTERSTORE|SUNIONSTORE|SDIFFSTORE} set set*",
    "SINTERCARD {1|2|3|0|x} set* [LIMIT {0|1|2|-1|x}]",
    "{LPUSH|RPUSH} list item*",
    "{LPUSH|RPUSH} list item*",
    "{LPUSH|RPUSH} list item* item* item* item* value",
    "{LPUSHX|RPUSHX} list item*",
    "{LPOP|RPOP} list",
    "{LPOP|RPOP} list",
    "{LPOP|RPOP} list {1|2|3|0|-1|100000|x|9223372036854775808}",
    "LLEN list",
    "LRANGE list index index",
    "LRANGE list {0|-3|1} {-1|3|-2}",
    "LINDEX list index",
    "LSET list {0|1|-1|-3|5|100|-100|x|01|9223372036854775808} item",
    "LSET list {0|-1|1|-2} item",
    "LINSERT list {BEFORE|AFTER} item item",
    "LREM list {0|1|-1|2|-2|index} item",
    "LTRIM list index index",
    "LTRIM list {0|1|-20} {-1|-2|20}",
    "LPOS list item [RANK {1|2|-1|-2|0|index}] [COUNT {0|1|2|index}] [MAXLEN {0|1|10|index}]",
    "LPOS list item [COUNT {0|2}] [RANK {1|2|-1|-2}]",
    "LMOVE list list {LEFT|RIGHT} {LEFT|RIGHT}",
    "LMOVE list list {LEFT|RIGHT|x} {LEFT|right}",
    "RPOPLPUSH list list",
    "LMPOP 1 list {LEFT|RIGHT} [COUNT {1|2|0|x|index}]",
    "LMPOP {2|3|0|x|index} list list {LEFT|RIGHT} [COUNT {1|2|100}]",
    "{BLPOP|BRPOP} list list* {0.001|0.002|x|-1|nan}",
    "BLMOVE list list {LEFT|RIGHT} {LEFT|RIGHT|x} {0.001|x|1e400}",
    "BRPOPLPUSH list list {0.001|-0.5}",
    "BLMPOP {0.001|x} 1 list {LEFT|RIGHT} [COUNT {1|2|0}]",
    "BLMPOP 0.001 {2|0|x} list list {LEFT|RIGHT}",
    "{BLPOP|BRPOP} {hash|set|key} 0.001",
    "DEL list",
    "OBJECT ENCODING list",
    "DUMP list",
    "RESTORE list 0 dump REPLACE",
    "RENAME list {list|key|hash}",
    "COPY list {list|set} [REPLACE]",
    "EXPIRE list seconds",
    "TYPE list",
    "{GET|INCR|APPEND|STRLEN|HLEN|SCARD} list",
    "{LLEN|LPOP|LRANGE} {hash|set|key} [0] [0]",
    "RPUSH numbers rank rank rank",
    "RPUSH numbers {score|float|number} rank",
    "SADD numbers-set rank rank rank rank",
    "DEL {numbers|numbers-set}",
    "MSET weighing {rank|rank|float|value} weighing {rank|rank|item}",
    "DEL weighing weighing",
    "HSET weighing-hash {f|g} {rank|rank|float|value}",
    "SORT {numbers|numbers-set|list|zset} [LIMIT {0|1|2|-1|index} {0|1|3|-1|index}] [{ASC|DESC}]",
    "{SORT|SORT_RO} {list|set|zset|numbers} [LIMIT {0|1} {1|3|-1}] [{ASC|DESC}] ALPHA",
    "{SORT|SORT_RO} {list|list|numbers|set|zset} BY by [LIMIT index index] [{ASC|DESC}] [GET #] [GET fetched]",
    "SORT {list|numbers|zset} BY nosort [LIMIT index index] [{ASC|DESC}] [GET fetched] [GET fetched]",
    "SORT {list|numbers|set} BY by ALPHA [{ASC|DESC}] [GET fetched] [GET #]",
    "SORT {list|numbers|set|zset} [LIMIT {0|1} {0|2|-1}] [{ASC|DESC}] ALPHA [GET fetched] STORE {list|zset|numbers}",
    "SORT {list|numbers|set} BY {by|nosort} [{ASC|DESC}] [GET #] [GET fetched] STORE {list|numbers}",
    "{SORT|SORT_RO} {key|hash|stream} [BY by] [STORE list]",
    "COMMAND GETKEYS SORT key [LIMIT 0 1] [BY by] [GET fetched] [STORE list] [DESC]",
    "ZADD zset score name",
    "ZADD zset score name",
    "ZADD zset scored*",
    "ZADD zset scored* scored* scored* scored*",
    "ZADD zset [{NX|XX|GT|LT}] [{XX|GT|LT}] [CH] scored*",
    "ZADD zset [{NX|XX|GT|LT}] [CH] INCR score name",
    "ZADD lex 0 name",
    "ZADD lex 0 name 0 name 0 name",
    "ZINCRBY zset score name",
    "ZINCRBY zset {1|-5|0.1} name",
    "ZREM {zset|lex} name",
    "ZREM zset name* name* name* name*",
    "ZSCORE zset name",
    "ZMSCORE zset name*",
    "ZMSCORE zset name* name* name* name*",
    "ZCARD zset",
    "ZCOUNT zset edge edge",
    "ZLEXCOUNT lex lexedge lexedge",
    "{ZRANK|ZREVRANK} zset name [WITHSCORE]",
    "ZRANGE zset index index [REV] [WITHSCORES] [LIMIT index {-1|index}]",
    "ZRANGE zset edge edge BYSCORE [REV] [WITHSCORES] [LIMIT {0|1|2|40|x} index]",
    "ZRANGE lex lexedge lexedge BYLEX [REV] [LIMIT {0|1|2|40|x} index]",
    "ZREVRANGE zset index index [WITHSCORES]",
    "{ZRANGEBYSCORE|ZREVRANGEBYSCORE} zset edge edge [WITHSCORES] [LIMIT {0|1|2|40|x} index]",
    "{ZRANGEBYLEX|ZREVRANGEBYLEX} lex lexedge lexedge [LIMIT {0|1|2|40|x} index]",
    "ZRANGESTORE zset zset index index [REV]",
    "ZRANGESTORE zset zset edge edge BYSCORE [REV] [LIMIT {0|1|2|40|x} index]",
    "ZREMRANGEBYRANK zset index {0|1|2|index}",
    "ZREMRANGEBYSCORE zset edge edge",
    "ZREMRANGEBYLEX lex lexedge lexedge",
    "{ZPOPMIN|ZPOPMAX} {zset|lex} [{1|2|0|-1|x|100}]",
    "ZMPOP {1|2|0|x} zset [zset] {MIN|MAX} [COUNT {1|2|0|x|100}]",
    "{BZPOPMIN|BZPOPMAX} zset zset* {0.001|0.002|x|-1}",
    "BZMPOP {0.001|x} {1|2|0|x} zset [zset] {MIN|MAX|x} [COUNT {1|2|0}]",
    "{BZPOPMIN|BZPOPMAX} {hash|list|key} 0.001",
    "ZRANDMEMBER zset",
    "ZRANDMEMBER zset sample [WITHSCORES]",
    "ZSCAN zset {0|0|5|x} [MATCH pattern] [COUNT index] [NOSCORES]",
    "{ZUNION|ZINTER|ZDIFF} 1 source [WITHSCORES]",
    "{ZUNION|ZINTER|ZDIFF} 2 source source [WITHSCORES]",
    "{ZUNION|ZINTER|ZDIFF} {3|2|0|x} source source source [WITHSCORES]",
    "{ZUNION|ZINTER} 2 source source [WEIGHTS weight weight] [AGGREGATE {SUM|MIN|MAX}] [WITHSCORES]",
    "{ZUNION|ZINTER} 3 source source source [WEIGHTS weight weight weight] [AGGREGATE {SUM|MIN|MAX}] WITHSCORES",
    "{ZUNIONSTORE|ZINTERSTORE} zset 2 source source [WEIGHTS weight weight] [AGGREGATE {SUM|MIN|MAX}]",
    "{ZUNIONSTORE|ZINTERSTORE|ZDIFFSTORE} zset {2|1|3|x} source source",
    "ZINTERCARD {1|2|3|0|x} source* [LIMIT {0|1|2|-1|x}]",
    "GEOADD geo [{NX|XX}] [CH] located*",
    "GEOADD geo located* located* located*",
    "GEOPOS {geo|zset} name*",
    "GEOHASH {geo|zset} name*",
    "GEODIST geo name name [unit]",
    "GEOSEARCH geo from BYRADIUS distance unit [{ASC|DESC}] [COUNT {1|2|0|100}] [WITHDIST] [WITHCOORD] [WITHHASH]",
    "GEOSEARCH geo from BYBOX distance distance unit [{ASC|DESC}] [COUNT {1|2|0|100}] [WITHDIST] [WITHCOORD] [WITHHASH]",
    "GEOSEARCH geo BYPOLYGON {3|4|2|x} position position position [{ASC|DESC}] [WITHDIST]",
    "GEOSEARCHSTORE zset geo from BYRADIUS distance unit [STOREDIST]",
    "GEOSEARCHSTORE zset geo from BYBOX distance distance unit [STOREDIST]",
    "{GEORADIUS|GEORADIUS_RO} geo position distance unit [WITHDIST] [{ASC|DESC}]",
    "{GEORADIUSBYMEMBER|GEORADIUSBYMEMBER_RO} geo {f1|f2|f7|nope} distance unit [WITHDIST] [{ASC|DESC}]",
    "GEORADIUS geo position distance unit {STORE|STOREDIST} zset",
    "XADD stream new-id field-pair*",
    "XADD stream new-id field-pair*",
    "XADD stream new-id field-pair",
    "XADD stream new-id {a|b} value {c|d} value",
    "XADD stream new-id {a|b} value {c|d} value",
    "XADD stream NOMKSTREAM new-id field-pair",
    "XADD stream [NOMKSTREAM] {MAXLEN|MAXLEN =} {0|1|5|20|index} new-id field-pair*",
    "XADD stream MINID [=] id new-id field-pair",
    "XADD stream {MAXLEN|MINID} ~ 0-1 [LIMIT {0|1|x|-1}] new-id field-pair",
    "XADD stream MAXLEN ~ 100000 [LIMIT index] new-id field-pair",
    "XADD stream [MAXLEN 5] [MINID 3] [LIMIT 5] new-id field-pair",
    "XADD stream {id|0-0|18446744073709551615-18446744073709551615} field-pair",
    "XADD stream new-ms field-pair",
    "XLEN stream",
    "XRANGE stream bound bound [COUNT {1|2|0|-1|index}]",
    "XREVRANGE stream bound bound [COUNT {1|2|0|-1|index}]",
    "{XRANGE|XREVRANGE} stream {-|+|bound} {-|+|bound}",
    "XREAD [COUNT {1|2|0|-1|index}] STREAMS stream {id|id|0|$|+|>|-}",
    "XREAD [COUNT {1|2}] STREAMS stream stream {id|0} {id|0|$}",
    "XREAD STREAMS stream stream id",
    "XDEL stream id*",
    "XDEL stream id* id* id*",
    "XTRIM stream {MAXLEN|MAXLEN =} {0|1|5|20|index}",
    "XTRIM stream MINID [=] id [LIMIT 5]",
    "XTRIM stream {MAXLEN|MINID} ~ 0 [LIMIT 0]",
    "XSETID stream id [ENTRIESADDED {5|100|1000|index}] [MAXDELETEDID id]",
    "XINFO STREAM stream",
    "XINFO STREAM stream FULL [COUNT {0|1|3|-1}]",
    "XINFO GROUPS stream",
    "XINFO GROUPS stream",
    "XINFO CONSUMERS stream group",
    "XGROUP CREATE stream group {$|0|0|id} [MKSTREAM] [ENTRIESREAD {0|-1|index}]",
    "XGROUP CREATE stream group {$|0|0|id} [MKSTREAM]",
    "XGROUP SETID stream group {$|0|id|id} [ENTRIESREAD {0|-1|index}]",
    "XGROUP DESTROY stream group",
    "XGROUP {CREATECONSUMER|DELCONSUMER} stream group consumer",
    "XREADGROUP GROUP group consumer [COUNT {1|2|3}] STREAMS stream >",
    "XREADGROUP GROUP group consumer COUNT {1|2|3} STREAMS stream >",
    "XREADGROUP GROUP group consumer [COUNT {1|2|3}] [NOACK] STREAMS stream {>|>|0|id|$|+}",
    "XREADGROUP GROUP group consumer COUNT 2 STREAMS stream stream > {>|0}",
    "XACK stream group id*",
    "XACK stream group id* id* id* id*",
    "XPENDING stream group",
    "XPENDING stream group [IDLE {0|100000000|x}] bound bound {1|3|100|x|-1} [consumer]",
    "XCLAIM stream group consumer {0|0|100000000|x} id* [{IDLE 5|TIME 1000}] [RETRYCOUNT {0|3|x|-1}] [FORCE] [JUSTID] [LASTID id]",
    "XAUTOCLAIM stream group consumer {0|0|100000000|x} {0|id|-} [COUNT {1|2|0}] [JUSTID]",
    "DEL stream",
    "TYPE stream",
    "OBJECT ENCODING stream",
    "EXPIRE stream seconds",
    "DUMP stream",
    "DUMP stream",
    "RESTORE stream 0 dump REPLACE",
    "RENAME stream {stream|key|hash}",
    "COPY stream {stream|set} [REPLACE]",
    "{GET|HLEN|SCARD|LLEN|ZCARD} stream",
    "{XLEN|XINFO STREAM|XINFO GROUPS} {hash|set|key}",
    "COMMAND GETKEYS XREAD [COUNT 5] [BLOCK 0] STREAMS key key 0 0",
    "COMMAND GETKEYS XREADGROUP GROUP a b [NOACK] STREAMS key* 0",
    "DEL geo",
    "DEL zset",
    "DEL lex",
    "DEL hash",
    "DEL set",
    "TYPE {hash|set|zset}",
    "OBJECT ENCODING {hash|set|zset}",
    "EXPIRE {hash|set|zset} seconds",
    "TTL {hash|set|zset}",
    "PERSIST {hash|set|zset}",
    "RENAME {hash|set|zset} {hash|set|zset}",
    "COPY {hash|set|zset} {hash|set|zset} [REPLACE]",
    "DUMP {hash|set|zset}",
    "RESTORE {hash|set|zset} 0 dump REPLACE",
    "DEL key*",
    "UNLINK key*",
    "EXISTS key*",
    "TOUCH key*",
    "TYPE key",
    "EXPIRE key seconds [{NX|XX|GT|LT}] [{XX|GT|LT}]",
    "PEXPIRE key millis [{NX|XX|GT|LT}] [{XX|GT|LT}]",
    "EXPIREAT key second [{NX|XX|GT|LT}]",
    "PEXPIREAT key milli [{NX|XX|GT|LT}]",
    "TTL key",
    "PTTL key",
    "EXPIRETIME key",
    "PEXPIRETIME key",
    "PERSIST key",
    "RENAME key key",
    "RENAMENX key key",
    "COPY key key [DB database] [REPLACE]",
    "COPY key key [REPLACE]",
    "DUMP key",
    "RESTORE key {0|0|1000000|-1|x} dump [REPLACE] [{IDLETIME index|FREQ index}]",
    "RESTORE key {0|-1|33177117420123} dump [REPLACE] ABSTTL",
    "OBJECT {ENCODING|REFCOUNT|IDLETIME|FREQ} key",
    "MEMORY USAGE key [SAMPLES index]",
    "KEYS pattern",
    "SCAN 0 COUNT 5000 [MATCH pattern] [TYPE {string|list|STRING|hash|set|zset|nosuch}]",
    "RANDOMKEY",
    "DBSIZE",
    "WAIT {0|-1} {0|1}",
    "WAITAOF 0 0 {0|1}",
    "SELECT database",
    "ECHO value",
    "PING [value]",
    "COMMAND GETKEYS MSETEX {1|2} pair pair",
];

/// Ids of stream entries that are special or invalid.
const IDS: &[&str] = &[
    "0",
    "0-0",
    "0-1",
    "007-01",
    "5-",
    "-5",
    "x",
    "1-x",
    "1-2-3",
    "-",
    "+",
    "(",
    "(-",
    "(0-0",
    "(5-1",
    "18446744073709551615-18446744073709551615",
    "(18446744073709551615-18446744073709551615",
    "18446744073709551616",
    "18446744073709551615",
    "",
];

/// Numbers at or near boundaries.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "7",
    "8",
    "10",
    "-10",
    "100",
    "127",
    "128",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "-2147483648",
    "-2147483649",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "00",
    "01",
    "-0",
    "+1",
    " 1",
    "1 ",
    "",
    "1.0",
    "abc",
    "0x10",
    "1e3",
];
const FLOATS: &[&str] = &[
    "0",
    "-0",
    "1",
    "-1",
    "0.1",
    "1.1",
    "3.0e3",
    "-2.5",
    "1e17",
    "-1e17",
    "1e-17",
    "5e-18",
    "1e18",
    "123456789.123456789",
    "9007199254740993",
    "18446744073709551616.5",
    "1e400",
    "-1e400",
    "1e4931",
    "1e4932",
    "1e-4931",
    "1e-4940",
    "1e-5000",
    "inf",
    "-inf",
    "INFINITY",
    "nan",
    "0x1p3",
    "0x.8",
    "0x",
    "1e",
    ".5",
    "5.",
    ".",
    "+1.5",
    "--1",
    " 1",
    "1 ",
    "",
    "abc",
    "3.14159265358979323846",
    "1.7976931348623157e308",
    "0.30000000000000004",
    "99999999999999999.999",
];
/// Scores, without negative zero: Valkey keeps its sign in some encodings.
const SCORES: &[&str] = &[
    "0",
    "1",
    "-1",
    "+1",
    "0.1",
    "-2.5",
    "3.0e3",
    "1e17",
    "1e-17",
    "1e21",
    "9007199254740993",
    "1e400",
    "-1e400",
    "1e-400",
    "5e-324",
    "inf",
    "-inf",
    "INFINITY",
    "nan",
    "0x1p3",
    "1e",
    ".5",
    "5.",
    ".",
    "--1",
    " 1",
    "1 ",
    "",
    "abc",
    "3.14159265358979323846",
    "1.7976931348623157e308",
    "0.30000000000000004",
];
const LEX_EDGES: &[&str] = &["-", "+", "[f1", "(f1", "[f5", "(f5", "[", "(", "f1", "", "[a", "(9"];
const PATTERNS: &[&str] = &[
    "*", "?", "a*", "[ab]", "[^ab]", "[a-c]", "key:*", "\\*", "*1*", "", "[", "{*", "k?y:1", "*\\",
];
const JUNK: &[&str] =
    &["", "x", "NX", "GET", "0", "-1", "EX", "a b", "\r\n", "key:1", "REPLACE", "BYTE", "9e9"];
/// Times to live and times since 1970, in seconds, that are long, invalid, or in the past.
const SPANS: &[&str] = &[
    "1000",
    "100000",
    "31536000",
    "0",
    "-1",
    "9223372036854775",
    "9223372036854775807",
    "x",
    "1.5",
];
const MILLIS: &[&str] = &["1000000", "100000000", "0", "-1", "9223372036854775807", "x", ""];
const SECONDS_AT: &[&str] =
    &["33177117420", "1", "0", "-1", "9223372036854775", "9223372036854775807", "1600000000"];
const MILLIS_AT: &[&str] =
    &["33177117420123", "33177117420500", "1", "0", "-1", "9223372036854775807", "1600000000000"];
const KINDS: &[&str] =
    &["u1", "i1", "u8", "i8", "u5", "i13", "u16", "u63", "i64", "u64", "i65", "u0", "8", "x8", "u"];

/// A generator of requests.
pub(super) struct Grammar {
    /// Dumps from earlier replies.
    dumps: Vec<Vec<u8>>,
    /// Milliseconds of the newest id of a stream entry.
    newest: Cell<u64>,
}

impl Grammar {
    pub(super) fn new() -> Grammar {
        let dumps = vec![b"\x00\xc0\x01P\x00\xe9R.'OSv\x08".to_vec()];
        Grammar { dumps, newest: Cell::new(1) }
    }

    /// Adds a dump for later use by `RESTORE`.
    pub(super) fn remember(&mut self, random: &mut Rng, dump: &[u8]) {
        if self.dumps.len() < 50 {
            self.dumps.push(dump.to_vec());
        } else {
            let at = random.usize(..self.dumps.len());
            self.dumps[at] = dump.to_vec();
        }
    }

    /// Returns a request that is usually valid.
    pub(super) fn request(&self, random: &mut Rng) -> Vec<Vec<u8>> {
        if random.usize(..3_000) == 0 {
            return vec![b"FLUSHALL".to_vec()];
        }
        let line = random.choice(GRAMMAR).copied().unwrap_or_default();
        let mut words = Vec::new();
        self.expand(random, line, &mut words);
        if random.usize(..12) == 0 {
            self.spoil(random, &mut words);
        }
        if random.usize(..10) == 0 {
            words[0].make_ascii_lowercase();
        }
        words
    }

    fn spoil(&self, random: &mut Rng, words: &mut Vec<Vec<u8>>) {
        // The name is never changed. No change may turn a request into one that waits, or that
        // removes random members, or that gives another score to a member of a set whose members
        // have one score.
        const KEPT: [&[u8]; 11] = [
            b"WAIT",
            b"WAITAOF",
            b"BLPOP",
            b"BRPOP",
            b"BLMOVE",
            b"BRPOPLPUSH",
            b"BLMPOP",
            b"BZPOPMIN",
            b"BZPOPMAX",
            b"BZMPOP",
            b"SPOP",
        ];
        let has_one_score = words.get(1).is_some_and(|key| key.starts_with(b"y"));
        if KEPT.contains(&&words[0][..]) || has_one_score {
            return;
        }
        let junk = one(random, JUNK);
        match (random.usize(..4), words.len()) {
            (0, 2..) => drop(words.remove(random.usize(1..words.len()))),
            (1, 2..) => {
                let at = random.usize(1..words.len());
                words.insert(at, words[at].clone());
            }
            (2, 2..) => {
                let at = random.usize(1..words.len());
                words[at] = junk;
            }
            _ => words.push(junk),
        }
    }

    /// Appends the expansion of a line, or of a part of one.
    fn expand(&self, random: &mut Rng, line: &str, words: &mut Vec<Vec<u8>>) {
        let mut rest = line.trim_start();
        while !rest.is_empty() {
            let end = end_of_part(rest);
            let (part, after) = rest.split_at(end);
            rest = after.trim_start();
            if let Some(inside) = part.strip_prefix('[').and_then(|part| part.strip_suffix(']')) {
                if random.bool() {
                    self.expand(random, inside, words);
                }
            } else if let Some(inside) =
                part.strip_prefix('{').and_then(|part| part.strip_suffix('}'))
            {
                let choices: Vec<&str> = inside.split('|').collect();
                let choice = choices[random.usize(..choices.len())];
                self.expand(random, choice, words);
            } else if let Some(repeated) = part.strip_suffix('*') {
                (0..random.usize(1..4)).for_each(|_| self.expand(random, repeated, words));
            } else {
                self.word(random, part, words);
            }
        }
    }

    fn word(&self, random: &mut Rng, name: &str, words: &mut Vec<Vec<u8>>) {
        words.push(match name {
            "key" => key(random),
            "hash" => mostly(random, &["h1", "h2", "h3"]),
            "set" => mostly(random, &["s1", "s2", "s3", "s4"]),
            "list" => mostly(random, &["l1", "l2", "l3", "l4"]),
            "item" => match random.usize(..20) {
                0 => value(random),
                1 | 2 => number(random),
                3..6 => random.u8(..30).to_string().into_bytes(),
                _ => format!("i{}", random.u8(..9)).into_bytes(),
            },
            "numbers" => one(random, &["n1", "n2"]),
            "numbers-set" => one(random, &["m1", "m2"]),
            "rank" => random.i32(-20..20).to_string().into_bytes(),
            "weighing" | "weighing-hash" => {
                let prefix = if name == "weighing" { "w_" } else { "wh_" };
                match random.bool() {
                    true => format!("{prefix}i{}", random.u8(..9)).into_bytes(),
                    false => format!("{prefix}{}", random.i32(-20..20)).into_bytes(),
                }
            }
            "by" => one(random, &["w_*", "w_*", "wh_*->f", "wh_*->g", "*", "w_*x", "w_*->f"]),
            "fetched" => one(
                random,
                &["#", "w_*", "wh_*->f", "wh_*->", "wh_*->nope", "wh_*", "w_", "*", "x*->f"],
            ),
            "zset" => mostly(random, &["z1", "z2", "z3"]),
            "lex" => one(random, &["y1", "y2"]),
            "source" => return self.expand(random, "{zset|zset|zset|set}", words),
            "scored" => return self.expand(random, "score name", words),
            "score" => match random.usize(..8) {
                0 => one(random, SCORES),
                1 => format!("{}", random.i64(-100_000..100_000) as f64 / 1000.0).into_bytes(),
                2 => format!("{:e}", random.f64() * 1e20).into_bytes(),
                _ => random.i32(-20..20).to_string().into_bytes(),
            },
            "edge" => {
                let excluded = if random.u8(..4) == 0 { "(" } else { "" };
                let edge = match random.usize(..8) {
                    0 => one(random, SCORES),
                    1 => one(random, &["-inf", "+inf"]),
                    _ => random.i32(-20..20).to_string().into_bytes(),
                };
                [excluded.as_bytes(), &edge].concat()
            }
            "geo" => one(random, &["g1", "g2"]),
            "located" => return self.expand(random, "position name", words),
            "from" => {
                let line =
                    "{FROMLONLAT position|FROMLONLAT position|FROMMEMBER f1|FROMMEMBER nope}";
                return self.expand(random, line, words);
            }
            "position" => return self.expand(random, "degrees degrees", words),
            // Far from the edges of the map, where Valkey's searches end.
            "degrees" => match random.usize(..20) {
                0 => one(random, SCORES),
                _ => format!("{:.4}", (random.f64() - 0.5) * 100.0).into_bytes(),
            },
            "distance" => match random.usize(..8) {
                0 => one(random, &["0", "-1", "x", "1e3", ".5"]),
                _ => random.u32(..3_000).to_string().into_bytes(),
            },
            "unit" => one(random, &["km", "km", "KM", "mi", "m", "ft", "x"]),
            "lexedge" => one(random, LEX_EDGES),
            "weight" => match random.usize(..6) {
                0 => one(random, SCORES),
                _ => one(random, &["1", "2", "0.5", "10", "0"]),
            },
            "name" => match random.usize(..8) {
                0 => value(random),
                1 => number(random),
                2 | 3 => random.u8(..30).to_string().into_bytes(),
                _ => format!("f{}", random.u8(..12)).into_bytes(),
            },
            // A large negative number keeps Valkey busy for minutes.
            "sample" => match random.usize(..12) {
                0 => one(random, &["9223372036854775807", "9223372036854775808", "x", "", "01"]),
                _ => random.i64(-20..40).to_string().into_bytes(),
            },
            "stream" => mostly(random, &["x1", "x2", "x3"]),
            "group" => one(random, &["g", "g", "g2"]),
            "consumer" => one(random, &["c1", "c2", "c3"]),
            "new-id" => {
                let ms = self.newest.get() + random.u64(..2);
                self.newest.set(ms);
                format!("{ms}-{}", random.u8(..4)).into_bytes()
            }
            "new-ms" => format!("{}-*", self.newest.get()).into_bytes(),
            "id" => match random.usize(..16) {
                0 => one(random, IDS),
                _ => {
                    let ms = self.newest.get().saturating_sub(random.u64(..60));
                    format!("{ms}-{}", random.u8(..4)).into_bytes()
                }
            },
            "bound" => match random.usize(..8) {
                0 => one(random, IDS),
                1 => {
                    format!("({}", self.newest.get().saturating_sub(random.u64(..40))).into_bytes()
                }
                2 => self.newest.get().saturating_sub(random.u64(..40)).to_string().into_bytes(),
                _ => return self.expand(random, "id", words),
            },
            "field-pair" => return self.expand(random, "name value", words),
            "value" => value(random),
            "number" => number(random),
            "index" => match random.usize(..4) {
                0 => one(random, NUMBERS),
                _ => random.i64(-20..40).to_string().into_bytes(),
            },
            "bit" => match random.usize(..8) {
                0 => one(random, NUMBERS),
                _ => random.u32(..2_000).to_string().into_bytes(),
            },
            "float" => match random.usize(..3) {
                0 => one(random, FLOATS),
                1 => format!("{}", random.i64(-100_000..100_000) as f64 / 1000.0).into_bytes(),
                _ => format!("{:e}", random.f64() * 1e20).into_bytes(),
            },
            "seconds" => one(random, SPANS),
            "millis" => one(random, MILLIS),
            "second" => one(random, SECONDS_AT),
            "milli" => one(random, MILLIS_AT),
            "pattern" => one(random, PATTERNS),
            "database" => {
                one(random, &["0", "0", "0", "1", "2", "15", "16", "-1", "x", "4294967296"])
            }
            "dump" => {
                let mut dump = self.dumps[random.usize(..self.dumps.len())].clone();
                if random.usize(..5) == 0 {
                    let at = random.usize(..dump.len());
                    dump[at] ^= 1 << random.u8(..8);
                }
                dump
            }
            "pair" => return self.expand(random, "key value", words),
            "get" => return self.expand(random, "GET kind place", words),
            "field" => {
                let line =
                    "{GET kind place|SET kind place number|INCRBY kind place number|OVERFLOW how}";
                return self.expand(random, line, words);
            }
            "kind" => one(random, KINDS),
            "place" => match random.usize(..6) {
                0 => one(random, NUMBERS),
                1 => format!("#{}", random.u32(..40)).into_bytes(),
                2 => one(random, &["#-1", "#x", "#", "#4294967296", "#99999999"]),
                _ => random.u32(..300).to_string().into_bytes(),
            },
            "how" => one(random, &["WRAP", "SAT", "FAIL", "sat", "x"]),
            other => other.as_bytes().to_vec(),
        });
    }
}

/// Returns the end of the first part of a line: a word or a bracketed expression.
fn end_of_part(line: &str) -> usize {
    let mut depth = 0;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            b' ' if depth == 0 => return at,
            _ => {}
        }
    }
    line.len()
}

fn one(random: &mut Rng, of: &[&str]) -> Vec<u8> {
    of[random.usize(..of.len())].as_bytes().to_vec()
}

fn key(random: &mut Rng) -> Vec<u8> {
    match random.usize(..24) {
        20 => b"h1".to_vec(),
        21 => b"s1".to_vec(),
        22 => b"z1".to_vec(),
        23 => b"a".to_vec(),
        0 => b"a key with \x00 and \xff".to_vec(),
        1 => Vec::new(),
        2 => b"{tag}a-rather-long-key-of-more-than-forty-bytes".to_vec(),
        at => one(random, &["a", "b", "c", "d", "key:1", "key:2"][..if at < 10 { 3 } else { 6 }]),
    }
}

/// Returns one of these keys, or sometimes any key.
fn mostly(random: &mut Rng, keys: &[&str]) -> Vec<u8> {
    if random.usize(..12) == 0 { key(random) } else { one(random, keys) }
}

fn number(random: &mut Rng) -> Vec<u8> {
    match random.usize(..3) {
        0 => one(random, NUMBERS),
        1 => random.i64(-300..300).to_string().into_bytes(),
        _ => random.i64(..).to_string().into_bytes(),
    }
}

fn value(random: &mut Rng) -> Vec<u8> {
    let bytes = |random: &mut Rng, length: usize| (0..length).map(|_| random.u8(..)).collect();
    match random.usize(..12) {
        0 => Vec::new(),
        1 => one(random, FLOATS),
        2 | 3 => number(random),
        4 => vec![if random.bool() { 0xff } else { 0 }; random.usize(..70)],
        5 => {
            let length = random.usize(..60);
            bytes(random, length)
        }
        6 => {
            let length = random.usize(..6_000);
            bytes(random, length)
        }
        7 => b"abcabcabc".repeat(random.usize(..40)),
        _ => {
            let length = random.usize(1..12);
            (0..length).map(|_| random.u8(b'a'..=b'e')).collect()
        }
    }
}
