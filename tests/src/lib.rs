//! What the suites share: an S3 server on the loopback interface, and every store at a fresh place.

pub mod data;
pub mod s3_server;
pub mod stores;
