//! The HTTP fence: what it answers, what waits for what, and the suite through it.

mod answers;
mod conforms;
mod flight;
mod grpc;
mod support;
