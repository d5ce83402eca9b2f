//! The hub: its HTTP protocol and the Hugging Face cache layout. Everything from outside is verified.

/// A client for one endpoint and one cache folder.
#[derive(Debug)]
pub struct Hub {}
