//! Makes the gRPC service's code from its schema, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (schema, folder) = ("../proto/grpc/control.proto", "../proto/grpc");
    println!("cargo:rerun-if-changed={schema}");
    let files = protox::compile([schema], [folder])?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
