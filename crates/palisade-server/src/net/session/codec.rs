//! The gRPC session's codec: a frame's operations are counted before it is decoded.

use super::super::convert::Refusal;
use super::super::grpc::status;
use palisade_proto::frames;
use palisade_proto::v1::{Replies, Requests};
use prost::Message as _;
use prost::bytes::Buf as _;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Decodes frames of up to so many operations.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct Counted {
    pub(in crate::net) most: usize,
}

impl Codec for Counted {
    type Encode = Replies;
    type Decode = Requests;
    type Encoder = Counted;
    type Decoder = Counted;

    fn encoder(&mut self) -> Counted {
        *self
    }

    fn decoder(&mut self) -> Counted {
        *self
    }
}

impl Encoder for Counted {
    type Item = Replies;
    type Error = Status;

    fn encode(&mut self, replies: Replies, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(replies.encoded_len());
        replies
            .encode(out)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for Counted {
    type Item = Requests;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Requests>, Status> {
        let frame = message.copy_to_bytes(message.remaining());
        let invalid = |why| status(&Refusal::invalid(why));
        frames::check_count(&frame, self.most).map_err(|error| invalid(error.to_string()))?;
        let requests = Requests::decode(frame)
            .map_err(|error| invalid(format!("a frame that is no message: {error}")))?;
        Ok(Some(requests))
    }
}
