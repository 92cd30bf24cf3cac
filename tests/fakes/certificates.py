"""Throw-away certificates for TLS tests."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

_LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


class Authority:
    """Signs certificates; all files are PEM in `folder`, `ca` is its own certificate."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._own = self._sign("the authority", self._key, _LOOPBACK)
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self._own.public_bytes(Encoding.PEM))

    def _sign(self, name: str, key: Any, holds_for: x509.GeneralName, *, valid: bool = True) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        own = key is self._key
        day = datetime.timedelta(days=1)
        now = datetime.datetime.now(datetime.UTC)  # noqa: TID251  # certificates are valid by the calendar
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if own else self._own.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * day)
            .not_valid_after(now + day if valid else now - day)
            .add_extension(x509.BasicConstraints(ca=own, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([holds_for]), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def issue(self, name: str, *, valid: bool = True, loopback: bool = True) -> tuple[Path, Path]:
        """Certificate and key file for `name`; one that has expired when not `valid`. It holds for 127.0.0.1, or for
        its name when not `loopback`."""
        holds_for = _LOOPBACK if loopback else x509.DNSName(name)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(self._sign(name, key, holds_for, valid=valid).public_bytes(Encoding.PEM))
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, key_file
