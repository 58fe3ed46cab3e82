//! An echo server and a client of it.

use smol::net::{TcpListener, TcpStream};
use smol::prelude::*;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let address = format!("127.0.0.1:{}", arguments[2]);
    smol::block_on(async {
        match arguments[1].as_str() {
            "server" => serve(&address).await,
            _ => talk(&address).await,
        }
    })
}

async fn serve(address: &str) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        smol::spawn(smol::io::copy(stream.clone(), stream)).detach();
    }
}

async fn talk(address: &str) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    let mut bytes = [0; 32];
    for round in 0..2000u32 {
        bytes[..4].copy_from_slice(&round.to_le_bytes());
        stream.write_all(&bytes).await?;
        stream.read_exact(&mut bytes).await?;
        assert_eq!(bytes[..4], round.to_le_bytes());
    }
    println!("2000 round trips");
    Ok(())
}
