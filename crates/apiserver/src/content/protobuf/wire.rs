//! Pure. The wire format of protobuf: keys, and what follows them.

use super::ProtobufError;

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Payload<'a> {
    /// A number, as it is written: signed ones in two's complement of 64 bits.
    Varint(u64),
    /// Eight bytes, little endian.
    Fixed64(u64),
    /// Four bytes, little endian.
    Fixed32(u32),
    /// A string, bytes, a message, or packed numbers.
    Bytes(&'a [u8]),
}

/// Reads one field after the other.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(ProtobufError::Truncated)?;
            self.0 = rest;
            // The tenth byte has one bit of the number; what is above is cut off, as Go does.
            number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(ProtobufError::Varint)
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], ProtobufError> {
        let length = usize::try_from(length).map_err(|_| ProtobufError::Truncated)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(ProtobufError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtobufError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(ProtobufError::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn field(&mut self) -> Result<(u32, Payload<'a>), ProtobufError> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0).ok_or(ProtobufError::Key { key })?;
        let payload = match key & 7 {
            0 => Payload::Varint(self.varint()?),
            1 => Payload::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = self.varint()?;
                Payload::Bytes(self.take(length)?)
            }
            5 => Payload::Fixed32(u32::from_le_bytes(self.array()?)),
            // Groups: no message of Kubernetes has one.
            _ => return Err(ProtobufError::Key { key }),
        };
        Ok((number, payload))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Payload<'a>), ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// The numbers of a packed list.
pub(super) fn packed(bytes: &[u8]) -> impl Iterator<Item = Result<u64, ProtobufError>> {
    let mut rest = Fields(bytes);
    std::iter::from_fn(move || {
        if rest.0.is_empty() {
            return None;
        }
        let number = rest.varint();
        if number.is_err() {
            rest.0 = &[];
        }
        Some(number)
    })
}
