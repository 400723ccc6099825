//! One question to one upstream: a socket of its own, and so a port that nobody can guess; only what fits the question is taken.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_proto::serialize::binary::DecodeError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::Question;
use crate::message::MOST_UDP;

pub(super) struct Exchange<'a> {
    pub(super) question: &'a Question,
    pub(super) upstream: SocketAddr,
    pub(super) timeout: Duration,
    pub(super) by_tcp: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("the question cannot be written")]
    Unwritable,
    #[error("the answer cannot be read: {0}")]
    Unreadable(#[from] DecodeError),
    #[error("the answer is to another question")]
    Strange,
}

/// Asks by UDP, and by TCP if that answer is cut off or TCP is wanted.
pub(super) async fn exchange(exchange: &Exchange<'_>) -> Result<Message, ExchangeError> {
    let timeout = exchange.timeout;
    tokio::time::timeout(timeout, in_time(exchange)).await.unwrap_or(Err(ExchangeError::Timeout(timeout)))
}

async fn in_time(exchange: &Exchange<'_>) -> Result<Message, ExchangeError> {
    let message = message(exchange.question);
    let packet = message.to_vec().map_err(|_| ExchangeError::Unwritable)?;
    if !exchange.by_tcp {
        let answer = by_udp(&message, &packet, exchange.upstream).await?;
        if !answer.metadata.truncation {
            return Ok(answer);
        }
    }
    by_tcp(&message, &packet, exchange.upstream).await
}

fn message(question: &Question) -> Message {
    // Its number is random.
    let mut message = Message::query();
    message.metadata.recursion_desired = question.recursion;
    message.metadata.checking_disabled = question.checking_disabled;
    message.add_query(Query::query(question.name.clone(), question.kind));
    let mut edns = Edns::new();
    edns.set_max_payload(MOST_UDP).set_version(0).set_dnssec_ok(question.dnssec_ok);
    message.set_edns(edns);
    message
}

async fn by_udp(question: &Message, packet: &[u8], upstream: SocketAddr) -> Result<Message, ExchangeError> {
    let any: SocketAddr = match upstream {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(upstream).await?;
    socket.send(packet).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // What does not fit may be a forgery: the true answer is waited for.
        if let Ok(answer) = Message::from_vec(&buffer[..length])
            && answers(&answer, question)
        {
            return Ok(answer);
        }
    }
}

async fn by_tcp(question: &Message, packet: &[u8], upstream: SocketAddr) -> Result<Message, ExchangeError> {
    let mut stream = TcpStream::connect(upstream).await?;
    let length = u16::try_from(packet.len()).map_err(|_| ExchangeError::Unwritable)?;
    let framed = [&length.to_be_bytes(), packet].concat();
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; length.into()];
    stream.read_exact(&mut buffer).await?;
    let answer = Message::from_vec(&buffer)?;
    if answers(&answer, question) { Ok(answer) } else { Err(ExchangeError::Strange) }
}

fn answers(answer: &Message, question: &Message) -> bool {
    let metadata = &answer.metadata;
    let fits = metadata.id == question.metadata.id
        && metadata.message_type == MessageType::Response
        && metadata.op_code == OpCode::Query;
    // A server that refuses may leave the question out.
    fits && match (answer.queries.first(), question.queries.first()) {
        (Some(got), Some(asked)) => {
            got.name == asked.name && got.query_type == asked.query_type && got.query_class == asked.query_class
        }
        (None, _) => answer.answers.is_empty() && answer.authorities.is_empty(),
        (Some(_), None) => false,
    }
}
