//! What is promised of connections, on io_uring.

mod common;
#[path = "suite/connect.rs"]
mod connect;
#[path = "suite/echo.rs"]
mod echo;

const DRIVER: runtime::DriverKind = runtime::DriverKind::Uring;
