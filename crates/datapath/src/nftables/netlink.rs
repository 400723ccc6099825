//! Pure. Netlink messages of nf_tables, as far as listing a table needs: requests as bytes, answers as views over bytes.
//! Follows linux/netlink.h, linux/netfilter/nfnetlink.h and linux/netfilter/nf_tables.h.

use signpost_core::object::Family;

/// What is asked for: a message type of nf_tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Get {
    /// One table.
    Table = 1,
    /// Chains of a family.
    Chains = 4,
    /// Rules of a table.
    Rules = 7,
    /// Sets of a table.
    Sets = 10,
    /// Elements of a set.
    Elements = 13,
    /// The number of the rules' generation: it changes with every transaction.
    Generation = 16,
}

const SUBSYSTEM_NFTABLES: u16 = 10 << 8;
const FLAG_REQUEST: u16 = 0x1;
const FLAG_DUMP: u16 = 0x300;
const FLAG_DUMP_INTERRUPTED: u16 = 0x10;
const TYPE_ERROR: u16 = 2;
const TYPE_DONE: u16 = 3;
const HEADER_BYTES: usize = 16;
const NFGEN_BYTES: usize = 4;
/// Flags of an attribute's type: nested, big endian.
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// The family's number in a message.
fn family_number(family: Family) -> u8 {
    match family {
        Family::Ipv4 => 2,
        Family::Ipv6 => 10,
    }
}

impl Get {
    /// Whether the answer is a list, ended by a message of its own.
    pub fn is_dump(self) -> bool {
        !matches!(self, Get::Table | Get::Generation)
    }
}

/// A request with texts as attributes: `(type, text)`.
pub fn request(get: Get, family: Family, sequence: u32, texts: &[(u16, &str)]) -> Vec<u8> {
    let flags = FLAG_REQUEST | if get.is_dump() { FLAG_DUMP } else { 0 };
    let mut bytes = vec![0; 4];
    bytes.extend((SUBSYSTEM_NFTABLES | get as u16).to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family_number(family), 0, 0, 0]);
    for (kind, text) in texts {
        let length = u16::try_from(4 + text.len() + 1).expect("names are short");
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(text.as_bytes());
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    let length = u32::try_from(bytes.len()).expect("requests are short");
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes
}

/// A message of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// Something that was asked for.
    Item(Attributes<'a>),
    /// The end of a list.
    Done,
    /// It was refused with an errno; 0: a mere acknowledgement.
    Error(i32),
}

/// What is wrong with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NetlinkError {
    /// It ends in the middle of something.
    #[error("a message is cut off")]
    CutOff,
    /// The rules changed while they were listed.
    #[error("the rules changed while they were listed")]
    Interrupted,
}

/// The messages in what one read gave that answer a request of that sequence number.
pub fn messages(mut bytes: &[u8], sequence: u32) -> impl Iterator<Item = Result<Message<'_>, NetlinkError>> {
    std::iter::from_fn(move || {
        while !bytes.is_empty() {
            match next_message(bytes, sequence) {
                Err(error) => {
                    bytes = &[];
                    return Some(Err(error));
                }
                Ok((message, rest)) => {
                    bytes = rest;
                    if let Some(message) = message {
                        return Some(message);
                    }
                }
            }
        }
        None
    })
}

type Next<'a> = (Option<Result<Message<'a>, NetlinkError>>, &'a [u8]);

fn next_message(bytes: &[u8], sequence: u32) -> Result<Next<'_>, NetlinkError> {
    let length = usize::try_from(u32_at(bytes, 0)?).map_err(|_| NetlinkError::CutOff)?;
    let message = bytes.get(..length).filter(|message| message.len() >= HEADER_BYTES).ok_or(NetlinkError::CutOff)?;
    let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    let (kind, flags) = (u16_at(message, 4)?, u16_at(message, 6)?);
    if u32_at(message, 8)? != sequence {
        return Ok((None, rest));
    }
    if flags & FLAG_DUMP_INTERRUPTED != 0 {
        return Err(NetlinkError::Interrupted);
    }
    let body = &message[HEADER_BYTES..];
    let message = match kind {
        TYPE_ERROR => Message::Error(u32_at(body, 0)?.cast_signed().wrapping_neg()),
        TYPE_DONE => match u32_at(body, 0).unwrap_or_default().cast_signed() {
            error @ ..0 => Message::Error(error.wrapping_neg()),
            _ => Message::Done,
        },
        _ => Message::Item(Attributes(body.get(NFGEN_BYTES..).ok_or(NetlinkError::CutOff)?)),
    };
    Ok((Some(Ok(message)), rest))
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, NetlinkError> {
    let bytes = bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u16::from_ne_bytes).ok_or(NetlinkError::CutOff)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, NetlinkError> {
    let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u32::from_ne_bytes).ok_or(NetlinkError::CutOff)
}

/// A list of attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Attributes<'a> {
    /// Type and content of each. Ends at the first that is cut off.
    pub fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut bytes = self.0;
        std::iter::from_fn(move || {
            let length = usize::from(u16_at(bytes, 0).ok()?);
            let kind = u16_at(bytes, 2).ok()? & ATTRIBUTE_TYPE;
            let content = bytes.get(4..length)?;
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            Some((kind, content))
        })
    }

    /// The content of the first of a type.
    pub fn get(self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find(|(found, _)| *found == kind).map(|(_, content)| content)
    }

    /// The attributes in the first of a type.
    pub fn nested(self, kind: u16) -> Option<Attributes<'a>> {
        self.get(kind).map(Attributes)
    }

    /// A text that ends with a zero byte; what is no UTF-8 is replaced.
    pub fn text(self, kind: u16) -> Option<String> {
        self.get(kind).map(text)
    }

    /// A number, big endian as nf_tables has them.
    pub fn number(self, kind: u16) -> Option<u32> {
        Some(u32::from_be_bytes(self.get(kind)?.try_into().ok()?))
    }
}

/// A text up to its zero byte.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// The comment in the user data of a rule or an element: type, length, content, by one byte each; a comment is type 0.
pub fn comment(mut userdata: &[u8]) -> Option<String> {
    while let [kind, length, rest @ ..] = userdata {
        let (content, rest) = rest.split_at_checked(usize::from(*length))?;
        if *kind == 0 {
            return Some(text(content));
        }
        userdata = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::layout::Set;
    use super::super::observed::{ElementsReader, Table};
    use super::*;

    /// One attribute.
    fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + content.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER_BYTES + body.len()).unwrap();
        let head = [kind.to_ne_bytes(), flags.to_ne_bytes()].concat();
        [&length.to_ne_bytes()[..], &head, &sequence.to_ne_bytes(), &[0; 4], body].concat()
    }

    #[test]
    fn a_request_reads_back_as_a_message() {
        let bytes = request(Get::Elements, Family::Ipv6, 7, &[(1, "kube-proxy"), (2, "service-ips")]);
        let found: Vec<_> = messages(&bytes, 7).collect();
        let [Ok(Message::Item(attributes))] = found[..] else { panic!("{found:?}") };
        assert_eq!(attributes.text(1).as_deref(), Some("kube-proxy"));
        assert_eq!(attributes.text(2).as_deref(), Some("service-ips"));
        assert_eq!(messages(&bytes, 8).count(), 0);
    }

    #[test]
    fn ends_and_errors_are_told_apart() {
        let error = |errno: i32| (-errno).to_ne_bytes();
        let item = message(0, 0, 1, &[0; 4]);
        let bytes = [&item[..], &message(TYPE_DONE, 0, 1, &error(0))].concat();
        let found: Vec<_> = messages(&bytes, 1).collect();
        assert_eq!(found, [Ok(Message::Item(Attributes(&[]))), Ok(Message::Done)]);
        let of = |bytes: &[u8]| messages(bytes, 1).next().map(|found| found.map(|message| format!("{message:?}")));
        assert_eq!(of(&message(TYPE_ERROR, 0, 1, &error(2))), Some(Ok("Error(2)".to_owned())));
        assert_eq!(of(&message(TYPE_DONE, 0, 1, &error(4))), Some(Ok("Error(4)".to_owned())));
        assert_eq!(of(&message(0, FLAG_DUMP_INTERRUPTED, 1, &[0; 4])), Some(Err(NetlinkError::Interrupted)));
        assert_eq!(of(&item[..item.len() - 1]), Some(Err(NetlinkError::CutOff)));
        assert_eq!(of(&message(0, 0, 1, &[0; 3])), Some(Err(NetlinkError::CutOff)));
        assert_eq!(of(&[0; 16]), Some(Err(NetlinkError::CutOff)));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_comment_is_found_behind_other_user_data() {
        assert_eq!(comment(b"\x01\x02ab\x00\x03hi\x00").as_deref(), Some("hi"));
        assert_eq!(comment(b"\x01\x02ab"), None);
        assert_eq!(comment(b"\x00\x09hi"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, sequence in 0..3u32) {
            for found in messages(&bytes, sequence).flatten() {
                if let Message::Item(attributes) = found {
                    Table::default().read_rule(attributes);
                }
            }
            comment(&bytes);
        }

        #[test]
        fn no_elements_make_it_panic(
            set in prop::sample::select(&Set::ALL[..]),
            family in crate::strategies::family(),
            elements in prop::collection::vec(prop::collection::vec((0..12u16, 0..3u16, any::<Vec<u8>>()), 0..5), 0..5),
        ) {
            let element = |parts: &Vec<(u16, u16, Vec<u8>)>| {
                let parts = parts.iter().map(|(kind, inner, bytes)| attribute(*kind, &attribute(*inner, bytes)));
                attribute(1, &parts.collect::<Vec<_>>().concat())
            };
            let list = attribute(3, &elements.iter().map(element).collect::<Vec<_>>().concat());
            let mut reader = ElementsReader::new(set, family);
            reader.read(Attributes(&list));
            let found = reader.finish();
            prop_assert!(found.known.len() <= elements.len());
        }
    }
}
