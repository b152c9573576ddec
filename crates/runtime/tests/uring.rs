//! Tests of connections on the io_uring driver.

mod common;
#[path = "suite/connect.rs"]
mod connect;
#[path = "suite/echo.rs"]
mod echo;

const DRIVER: runtime::DriverKind = runtime::DriverKind::Uring;
