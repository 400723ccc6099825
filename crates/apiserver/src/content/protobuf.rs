//! Pure. Bodies of `application/vnd.kubernetes.protobuf`.

use super::Gvk;
use serde_json::Value;

/// Why a protobuf body cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// The four bytes `k8s\0` are not there.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Prefix,
    /// The kind is unknown.
    #[error("no kind {:?} is registered for version {:?}", .0.kind, .0.api_version())]
    UnknownKind(Gvk),
}

/// The kind and the object of a body of `application/vnd.kubernetes.protobuf`: `k8s\0`, then a `runtime.Unknown`.
///
/// # Errors
/// [`ProtobufError`]; the real server answers 400.
pub fn decode_protobuf(_body: &[u8]) -> Result<(Gvk, Value), ProtobufError> {
    Err(ProtobufError::Prefix)
}
