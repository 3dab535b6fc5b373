//! The HTTP fence: its answers, the order of requests, and the conformance suite.

mod answers;
mod conforms;
mod flight;
mod grpc;
mod reports;
mod sequencers;
mod support;
