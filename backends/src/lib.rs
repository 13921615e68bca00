//! The stores.
