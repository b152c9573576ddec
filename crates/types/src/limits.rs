//! Limits, each with its unit, its origin and its relation to the others.

/// Bytes of a segment when memory is plentiful: the unit of allocation, cleaning and replication.
pub const SEGMENT_BYTES: usize = 8 << 20;

/// Bytes of the smallest segment, for servers with little memory per reactor. An entry of the
/// largest size must fit.
pub const SEGMENT_BYTES_MIN: usize = 4 << 20;

/// Longest key in bytes: the key length field of a log entry has two bytes.
pub const KEY_BYTES_MAX: usize = 65_535;

/// Longest value in bytes: one entry with its key and headers fits into the smallest segment.
pub const VALUE_BYTES_MAX: usize = (4 << 20) - (64 << 10) - KEY_BYTES_MAX - 1;

/// Number of databases of a server (`SELECT 0` to `SELECT 15`), as in Redis's default
/// configuration. Each is a table.
pub const DATABASES: usize = 16;

/// Number of tables of a server: the databases, the table of completion records
/// ([`crate::TableId::COMPLETIONS`]), and that of pages ([`crate::TableId::PAGES`]).
pub const TABLES_MAX: usize = DATABASES + 2;

/// Longest value in the table of completion records, in bytes. A client that acknowledges the
/// replies that it has received stays far below.
pub const COMPLETION_BYTES_MAX: usize = 128 << 10;

/// Maximum number of reactors of one server: far above the cores of one machine.
pub const REACTORS_MAX: usize = 256;

/// Maximum number of partitions of one migration (Rocksteady §3.1.1 uses 8).
pub const PARTITIONS_MAX: usize = 64;

/// Maximum latency target of a migration, in microseconds: ten seconds.
pub const LATENCY_TARGET_MICROS_MAX: u32 = 10_000_000;

/// Maximum bytes of a record in the log: key, value, the entry's header and optional fields.
pub const RECORD_BYTES_MAX: usize = KEY_BYTES_MAX + VALUE_BYTES_MAX + 64;

const _: () = assert!(RECORD_BYTES_MAX <= SEGMENT_BYTES_MIN);

/// Unsent output in bytes above which a client is congested: it sends requests faster than it
/// reads replies. It is not read, and the service leaves further requests in the input
/// (`runtime::Io::is_congested`).
pub const CLIENT_BACKLOG_MAX: usize = 1 << 20;
