//! TLS by `rustls`, with no more of it than a client needs that shows no certificate of its own.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring::cipher_suite::{
    TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS13_AES_128_GCM_SHA256,
    TLS13_AES_256_GCM_SHA384,
};
use rustls::crypto::ring::kx_group::{SECP256R1, SECP384R1, X25519};
use rustls::crypto::{CryptoProvider, GetRandomFailed, KeyProvider, SecureRandom, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::SigningKey;
use rustls::{ClientConfig, RootCertStore, SignatureScheme};
use webpki::ring as signatures;

/// What a client is made of that trusts these authorities, or those of the system where none are given.
///
/// # Errors
/// None of TLS's versions can be spoken.
pub(crate) fn config(certificates: Option<&[CertificateDer<'static>]>) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    match certificates {
        Some(certificates) => _ = roots.add_parsable_certificates(certificates.iter().cloned()),
        None => trust_the_system(&mut roots),
    }
    let provider = CryptoProvider {
        // Every server with TLS 1.3 has AES (RFC 8446, 9.1), and those with 1.2 that are known have it, too.
        cipher_suites: vec![
            TLS13_AES_256_GCM_SHA384,
            TLS13_AES_128_GCM_SHA256,
            TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ],
        kx_groups: vec![X25519, SECP256R1, SECP384R1],
        signature_verification_algorithms: SIGNATURES,
        secure_random: &System,
        key_provider: &System,
    };
    let config = ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions()?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    // Messages are rare: no session is there to be taken up again.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// The signatures that `rustls` takes with *ring*, in its order.
const SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[
        signatures::ECDSA_P256_SHA256,
        signatures::ECDSA_P256_SHA384,
        signatures::ECDSA_P384_SHA256,
        signatures::ECDSA_P384_SHA384,
        signatures::ED25519,
        signatures::RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
        signatures::RSA_PSS_2048_8192_SHA384_LEGACY_KEY,
        signatures::RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
        signatures::RSA_PKCS1_2048_8192_SHA256,
        signatures::RSA_PKCS1_2048_8192_SHA384,
        signatures::RSA_PKCS1_2048_8192_SHA512,
        signatures::RSA_PKCS1_2048_8192_SHA256_ABSENT_PARAMS,
        signatures::RSA_PKCS1_2048_8192_SHA384_ABSENT_PARAMS,
        signatures::RSA_PKCS1_2048_8192_SHA512_ABSENT_PARAMS,
    ],
    mapping: &[
        // TLS 1.2 does not say by the scheme which curve it is.
        (SignatureScheme::ECDSA_NISTP384_SHA384, &[signatures::ECDSA_P384_SHA384, signatures::ECDSA_P256_SHA384]),
        (SignatureScheme::ECDSA_NISTP256_SHA256, &[signatures::ECDSA_P256_SHA256, signatures::ECDSA_P384_SHA256]),
        (SignatureScheme::ED25519, &[signatures::ED25519]),
        (SignatureScheme::RSA_PSS_SHA512, &[signatures::RSA_PSS_2048_8192_SHA512_LEGACY_KEY]),
        (SignatureScheme::RSA_PSS_SHA384, &[signatures::RSA_PSS_2048_8192_SHA384_LEGACY_KEY]),
        (SignatureScheme::RSA_PSS_SHA256, &[signatures::RSA_PSS_2048_8192_SHA256_LEGACY_KEY]),
        (SignatureScheme::RSA_PKCS1_SHA512, &[signatures::RSA_PKCS1_2048_8192_SHA512]),
        (SignatureScheme::RSA_PKCS1_SHA384, &[signatures::RSA_PKCS1_2048_8192_SHA384]),
        (SignatureScheme::RSA_PKCS1_SHA256, &[signatures::RSA_PKCS1_2048_8192_SHA256]),
    ],
};

/// Random numbers are the system's; keys of a certificate of one's own there are none.
#[derive(Debug)]
struct System;

impl SecureRandom for System {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        getrandom::fill(bytes).map_err(|_| GetRandomFailed)
    }
}

impl KeyProvider for System {
    fn load_private_key(&self, _: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, rustls::Error> {
        Err(rustls::Error::General("there are no keys".to_owned()))
    }
}

/// What the system trusts, else Mozilla's list.
fn trust_the_system(roots: &mut RootCertStore) {
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        found.errors.iter().for_each(|error| log::info!("coroner: the system's certificates can't be read: {error}"));
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
}

/// The certificates of a file, of which there has to be one.
///
/// # Errors
/// The file can't be read, or has none.
pub(crate) fn read_certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let bytes = std::fs::read(path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates = certificates.map_err(io::Error::other)?;
    if certificates.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "there is no certificate in it"));
    }
    Ok(certificates)
}
