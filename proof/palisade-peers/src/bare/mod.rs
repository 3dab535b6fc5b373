//! Each system's own client, following by hand the recipe of its adapter.

pub(crate) mod etcd;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod zookeeper;
