//! Generates a bare etcd client from the same interface description that the adapter uses.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = "../../crates/palisade-authorities/proto";
    println!("cargo:rerun-if-changed={protos}");
    let descriptors = protox::compile(["etcd/rpc.proto"], [protos])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .build_server(false)
        .compile_fds(descriptors)?;
    Ok(())
}
