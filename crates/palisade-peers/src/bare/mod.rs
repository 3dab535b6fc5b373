//! Each system's own client, carrying out by hand the recipe that its adapter follows.

pub(crate) mod etcd;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod zookeeper;
