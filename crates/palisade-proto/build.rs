//! Turns the .proto into Rust without `protoc`, and keeps its descriptor for gRPC reflection.

use std::path::PathBuf;
use std::{env, error, fs};

use prost::Message as _;

const PROTO: &str = "palisade/v1/palisade.proto";

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile([PROTO], ["proto"])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is set by cargo")?);
    fs::write(
        out.join("palisade.v1.descriptors"),
        descriptors.encode_to_vec(),
    )?;
    // Without `build_transport` the client works over any transport, and this crate needs none.
    tonic_prost_build::configure()
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
