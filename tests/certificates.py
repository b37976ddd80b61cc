"""An authority of its own for tests of TLS, and certificates that it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority", "Pair"]

_DAY = datetime.timedelta(days=1)


class Pair:
    """A certificate and its key, in files."""

    def __init__(self, cert: Path, key: Path) -> None:
        self.cert = str(cert)
        self.key = str(key)


class Authority:
    """Signs certificates; `ca` is the file with its own."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        self.ca = str(folder / "ca.pem")
        Path(self.ca).write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
        )

    def server(self, file: str = "server", *, address: str = "127.0.0.1") -> Pair:
        """Make a certificate of a server at this address."""
        names = [x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName("localhost")]
        return self._signed(file, [(NameOID.COMMON_NAME, "deltamq")], x509.SubjectAlternativeName(names))

    def client(
        self, common_name: str, organization: str = "Example", file: str = "client", *, uri: str | None = None
    ) -> Pair:
        """Make a certificate of a client."""
        names = [] if uri is None else [x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])]
        subject = [(NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, common_name)]
        return self._signed(file, subject, *names)

    def _signed(
        self, file: str, subject: list[tuple[x509.ObjectIdentifier, str]], *extensions: x509.ExtensionType
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(oid, value) for oid, value in subject])
        builder = self._builder(name, key)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        pair = Pair(self.folder / f"{file}.pem", self.folder / f"{file}.key")
        Path(pair.cert).write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        private = serialization.PrivateFormat.PKCS8
        text = key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
        Path(pair.key).write_bytes(text)
        return pair


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
