//! Generates Rust code for the part of etcd's interface that the adapter uses, without `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "etcd")]
    {
        println!("cargo:rerun-if-changed=proto");
        let descriptors = protox::compile(["etcd/rpc.proto"], ["proto"])?;
        tonic_prost_build::configure()
            .build_transport(false)
            .build_server(false)
            .compile_fds(descriptors)?;
    }
    Ok(())
}
