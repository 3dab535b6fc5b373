//! The gRPC session's codec: counts a frame's operations before it decodes the frame.

use super::super::convert::Refusal;
use super::super::grpc_status::status;
use palisade_proto::frames;
use palisade_proto::v1::{Replies, Requests};
use prost::Message as _;
use prost::bytes::Buf as _;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Decodes frames with at most this many operations.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct CountingCodec {
    pub(in crate::net) most: usize,
}

impl Codec for CountingCodec {
    type Encode = Replies;
    type Decode = Requests;
    type Encoder = CountingCodec;
    type Decoder = CountingCodec;

    fn encoder(&mut self) -> CountingCodec {
        *self
    }

    fn decoder(&mut self) -> CountingCodec {
        *self
    }
}

impl Encoder for CountingCodec {
    type Item = Replies;
    type Error = Status;

    fn encode(&mut self, replies: Replies, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(replies.encoded_len());
        replies
            .encode(out)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for CountingCodec {
    type Item = Requests;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Requests>, Status> {
        let frame = message.copy_to_bytes(message.remaining());
        let invalid = |why| status(&Refusal::invalid(why));
        frames::check_count(&frame, self.most).map_err(|error| invalid(error.to_string()))?;
        let requests = Requests::decode(frame)
            .map_err(|error| invalid(format!("a frame that is not a message: {error}")))?;
        Ok(Some(requests))
    }
}
