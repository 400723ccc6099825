//! Pure. Between packets and questions: what is a question that can be answered, and how the answer goes back.
//!
//! RFC 1035, 2181 (truncation), 6891 (EDNS0), 9619 (one question). Whatever is not a question gets either nothing or twelve
//! bytes: no packet that was not understood makes a larger one.

use hickory_proto::op::{
    Header, HeaderCounts, Message, MessageType, Metadata, OpCode, Query, ResponseCode, emit_message_parts,
};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};

/// A header's length.
const HEADER: usize = 12;
/// What a client without EDNS0 takes over UDP.
const PLAIN_UDP: u16 = 512;
/// The most that is sent over UDP: fits into every path's packets without fragments.
pub const MOST_UDP: u16 = 1232;
/// An OPT record without options: root name, type, payload size, code and flags, no data.
const OPT: usize = 11;

/// A record's bytes before its data, with a pointer as its name.
const POINTED: usize = 12;
/// "Something is left out", in a header's third byte.
const TRUNCATED: u8 = 2;

/// How a question came, and so how the answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// One packet.
    Udp,
    /// A stream.
    Tcp,
}

/// A question that can be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its number, for the answer.
    pub id: u16,
    /// The name asked for, as it was written.
    pub name: Name,
    /// The type asked for.
    pub kind: RecordType,
    /// How it came.
    pub transport: Transport,
    /// The client wants a recursive answer.
    pub recursion: bool,
    /// The client does its own DNSSEC validation.
    pub checking_disabled: bool,
    /// What EDNS0 said, if it was there.
    pub edns: Option<ClientEdns>,
    /// The packet's length in bytes.
    pub size: usize,
}

/// What the client says by EDNS0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientEdns {
    /// The largest packet that it takes, in bytes.
    pub payload: u16,
    /// It wants DNSSEC records.
    pub dnssec_ok: bool,
}

/// What becomes of a packet that is no question to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing is sent.
    Silence,
    /// This is, with that code.
    Reply(Vec<u8>, ResponseCode),
}

/// An answer, before it is written down.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    /// What became of the question.
    pub code: ResponseCode,
    /// It comes from who has authority over the name.
    pub authoritative: bool,
    /// An upstream server vouches for it.
    pub authentic: bool,
    /// An upstream server's answer was cut off.
    pub truncated: bool,
    /// Records that answer it.
    pub answers: Vec<Record>,
    /// Records that say who has authority, or how long "no" holds.
    pub authorities: Vec<Record>,
    /// Records that may be left out.
    pub additionals: Vec<Record>,
}

impl Response {
    /// A code without records.
    pub fn code(code: ResponseCode) -> Response {
        Response {
            code,
            authoritative: false,
            authentic: false,
            truncated: false,
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
        }
    }
}

impl Request {
    /// Reads a packet.
    ///
    /// # Errors
    /// It is no question that can be answered.
    pub fn read(packet: &[u8], transport: Transport) -> Result<Request, Refusal> {
        let Some(header) = packet.get(..HEADER) else { return Err(Refusal::Silence) };
        if header[2] & 0x80 != 0 {
            // An answer to nobody's question. Whoever answers answers starts a circle.
            return Err(Refusal::Silence);
        }
        if header[2] >> 3 & 0xf != 0 {
            return Err(refuse(header, ResponseCode::NotImp));
        }
        let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        // At most one record besides: OPT, and a signature. Checked first: room is made by these counts when the rest is read.
        if count(4) != 1 || count(6) != 0 || count(8) > 1 || count(10) > 2 {
            return Err(refuse(header, ResponseCode::FormErr));
        }
        let Ok(mut message) = Message::from_vec(packet) else { return Err(refuse(header, ResponseCode::FormErr)) };
        let Some(question) = message.queries.pop() else { return Err(refuse(header, ResponseCode::FormErr)) };
        let edns = message.edns.as_ref();
        let request = Request {
            id: message.metadata.id,
            name: question.name,
            kind: question.query_type,
            transport,
            recursion: message.metadata.recursion_desired,
            checking_disabled: message.metadata.checking_disabled,
            edns: edns.map(|edns| ClientEdns { payload: edns.max_payload(), dnssec_ok: edns.flags().dnssec_ok }),
            size: packet.len(),
        };
        let refused = if edns.is_some_and(|edns| edns.version() != 0) {
            Some(ResponseCode::BADVERS)
        } else if question.query_class != DNSClass::IN || is_meta(request.kind) {
            Some(ResponseCode::Refused)
        } else {
            None
        };
        match refused {
            Some(code) => Err(Refusal::Reply(request.write(&Response::code(code)), code)),
            None => Ok(request),
        }
    }

    /// How many bytes an answer may have.
    pub fn limit(&self) -> u16 {
        match (self.transport, self.edns) {
            (Transport::Tcp, _) => u16::MAX,
            (Transport::Udp, None) => PLAIN_UDP,
            (Transport::Udp, Some(edns)) => edns.payload.clamp(PLAIN_UDP, MOST_UDP),
        }
    }

    /// More address records than this do not fit into the answer.
    pub fn most_records(&self) -> usize {
        // A pointer to the name, type, class, TTL, length, an IPv4 address. One more than fits says that something is missing.
        usize::from(self.limit()) / 16 + 1
    }

    /// The answer as a packet. What does not fit is left out: additional records silently, others with a mark.
    pub fn write(&self, response: &Response) -> Vec<u8> {
        self.try_write(response).unwrap_or_else(|| self.bare(ResponseCode::ServFail))
    }

    fn try_write(&self, response: &Response) -> Option<Vec<u8>> {
        if let Some(packet) = self.write_addresses(response) {
            return Some(packet);
        }
        let (packet, counts) = self.emit(response, &response.additionals)?;
        let whole = usize::from(counts.answers) == response.answers.len()
            && usize::from(counts.authorities) == response.authorities.len();
        let without = whole && usize::from(counts.additionals) < response.additionals.len();
        let mut packet = if without { self.emit(response, &[])?.0 } else { packet };
        if let Some(edns) = self.edns {
            add_opt(&mut packet, response.code, edns.dnssec_ok);
        }
        Some(packet)
    }

    /// The answer that nearly every question gets: addresses of the very name that was asked for, and nothing else. The library
    /// writes it too, but at most 120 names as pointers; here all are, so that an answer by TCP can hold 4,000 addresses.
    fn write_addresses(&self, response: &Response) -> Option<Vec<u8>> {
        if response.answers.is_empty() || !response.authorities.is_empty() || !response.additionals.is_empty() {
            return None;
        }
        let is_own = |record: &Record| {
            let is_address = matches!(record.data, RData::A(_) | RData::AAAA(_));
            is_address && record.dns_class == DNSClass::IN && record.name.eq_case(&self.name)
        };
        if !response.answers.iter().all(is_own) {
            return None;
        }
        let limit = usize::from(self.limit()) - if self.edns.is_some() { OPT } else { 0 };
        let mut packet = Vec::with_capacity(PLAIN_UDP.into());
        let mut header = BinEncoder::new(&mut packet);
        Header { metadata: self.metadata(response), counts: HeaderCounts::default() }.emit(&mut header).ok()?;
        for label in self.name.iter() {
            packet.push(label.len() as u8);
            packet.extend_from_slice(label);
        }
        packet.push(0);
        packet.extend_from_slice(&u16::from(self.kind).to_be_bytes());
        packet.extend_from_slice(&u16::from(DNSClass::IN).to_be_bytes());
        let mut count: u16 = 0;
        for record in &response.answers {
            let (octets, length) = match &record.data {
                RData::A(address) => (address.0.to_ipv6_mapped().octets(), 4),
                RData::AAAA(address) => (address.0.octets(), 16),
                _ => return None,
            };
            if packet.len() + POINTED + length > limit {
                packet[2] |= TRUNCATED;
                break;
            }
            // A pointer to the question's name.
            packet.extend_from_slice(&[0xc0, HEADER as u8]);
            packet.extend_from_slice(&u16::from(record.record_type()).to_be_bytes());
            packet.extend_from_slice(&u16::from(DNSClass::IN).to_be_bytes());
            packet.extend_from_slice(&record.ttl.to_be_bytes());
            packet.extend_from_slice(&[0, length as u8]);
            packet.extend_from_slice(&octets[octets.len() - length..]);
            count += 1;
        }
        packet[4..8].copy_from_slice(&[[0, 1], count.to_be_bytes()].concat());
        if let Some(edns) = self.edns {
            add_opt(&mut packet, response.code, edns.dnssec_ok);
        }
        Some(packet)
    }

    fn metadata(&self, response: &Response) -> Metadata {
        let mut metadata = Metadata::new(self.id, MessageType::Response, OpCode::Query);
        metadata.response_code = response.code;
        metadata.authoritative = response.authoritative;
        metadata.authentic_data = response.authentic;
        metadata.truncation = response.truncated;
        metadata.recursion_desired = self.recursion;
        metadata.recursion_available = true;
        metadata.checking_disabled = self.checking_disabled;
        metadata
    }

    fn emit(&self, response: &Response, additionals: &[Record]) -> Option<(Vec<u8>, HeaderCounts)> {
        let metadata = self.metadata(response);
        let mut query = Query::query(self.name.clone(), self.kind);
        query.set_query_class(DNSClass::IN);
        let mut packet = Vec::with_capacity(PLAIN_UDP.into());
        let mut encoder = BinEncoder::new(&mut packet);
        encoder.set_max_size(self.limit() - if self.edns.is_some() { OPT as u16 } else { 0 });
        let header: Header = emit_message_parts(
            &metadata,
            &mut std::iter::once(&query),
            &mut response.answers.iter(),
            &mut response.authorities.iter(),
            &mut additionals.iter(),
            None,
            None,
            &mut encoder,
        )
        .ok()?;
        // A record that did not fit leaves its first bytes behind.
        encoder.trim();
        Some((packet, header.counts))
    }

    /// A header and no more.
    fn bare(&self, code: ResponseCode) -> Vec<u8> {
        let mut metadata = Metadata::new(self.id, MessageType::Response, OpCode::Query);
        metadata.response_code = code;
        metadata.recursion_desired = self.recursion;
        metadata.recursion_available = true;
        let mut packet = Vec::with_capacity(HEADER);
        let mut encoder = BinEncoder::new(&mut packet);
        let counts = HeaderCounts::default();
        Header { metadata, counts }.emit(&mut encoder).expect("a header fits");
        packet
    }
}

/// Types that ask for something else than records of a name.
fn is_meta(kind: RecordType) -> bool {
    matches!(kind, RecordType::AXFR | RecordType::IXFR | RecordType::OPT | RecordType::TSIG | RecordType::ZERO)
}

/// The header of the question, turned into that of an answer with this code. The question itself is not understood.
fn refuse(header: &[u8], code: ResponseCode) -> Refusal {
    let mut reply = vec![0; HEADER];
    reply[..2].copy_from_slice(&header[..2]);
    // QR, and the opcode and "recursion desired" as they came.
    reply[2] = 0x80 | header[2] & 0x79;
    reply[3] = code.low();
    Refusal::Reply(reply, code)
}

/// Adds an OPT record of our own (RFC 6891: who asks with one is answered with one).
fn add_opt(packet: &mut Vec<u8>, code: ResponseCode, dnssec_ok: bool) {
    let [high, low] = MOST_UDP.to_be_bytes();
    let flags = if dnssec_ok { 0x80 } else { 0 };
    packet.extend_from_slice(&[0, 0, 41, high, low, code.high(), 0, flags, 0, 0, 0]);
    let count = u16::from_be_bytes([packet[10], packet[11]]) + 1;
    packet[10..HEADER].copy_from_slice(&count.to_be_bytes());
}

#[cfg(test)]
mod tests;
