//! Tests of connections on the epoll driver.

mod common;
#[path = "suite/connect.rs"]
mod connect;
#[path = "suite/echo.rs"]
mod echo;

const DRIVER: runtime::DriverKind = runtime::DriverKind::Epoll;
