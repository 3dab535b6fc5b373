//! Frames: a length, and as many bytes.
//!
//! ```text
//!   length (u32, little-endian) │ bytes
//! ```

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Reads one frame of at most `most` bytes. `None` if the connection ended before it began.
///
/// Memory grows with the bytes that have arrived: a length alone costs nothing.
pub(super) async fn read(
    from: &mut (impl AsyncRead + Unpin + ?Sized),
    most: usize,
) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if from.read(&mut length[..1]).await? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[1..]).await?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        let why = format!("a frame of {length} bytes is over the limit of {most}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut bytes = Vec::with_capacity(length.min(AT_ONCE));
    from.take(length as u64).read_to_end(&mut bytes).await?;
    if bytes.len() == length {
        Ok(Some(bytes))
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

const AT_ONCE: usize = 64 << 10;

/// Writes one frame: `head`, then `bytes`.
pub(super) async fn write(
    to: &mut (impl AsyncWrite + Unpin + ?Sized),
    head: &[u8],
    bytes: &[u8],
) -> io::Result<()> {
    let length = u32::try_from(head.len() + bytes.len()).map_err(io::Error::other)?;
    let mut start = Vec::with_capacity(4 + head.len() + bytes.len().min(AT_ONCE));
    start.extend_from_slice(&length.to_le_bytes());
    start.extend_from_slice(head);
    // A small one is one write, and so one packet.
    let rest = if bytes.len() <= AT_ONCE {
        start.extend_from_slice(bytes);
        &[]
    } else {
        bytes
    };
    to.write_all(&start).await?;
    to.write_all(rest).await?;
    // TLS keeps the end of it otherwise.
    to.flush().await
}
