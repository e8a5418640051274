"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.parts import need, program

__all__ = ["KIND", "make_authority", "openssl", "sign_for"]

KIND = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
"""Keys that are made quickly, and not encrypted."""


def openssl(folder: Path, *arguments: str) -> None:
    need("openssl")
    subprocess.run([program("openssl"), *arguments], cwd=folder, check=True, capture_output=True)


def make_authority(folder: Path) -> None:
    """Its certificate is ca.pem."""
    files = ("-keyout", "ca.key", "-out", "ca.pem")
    openssl(folder, "req", "-x509", *KIND, "-days", "2", "-subj", "/CN=authority", *files)


def sign_for(folder: Path, name: str, names: str) -> None:
    """A certificate of the folder's authority, `name`.pem with `name`.key, for `names`: "DNS:broker.example"."""
    openssl(folder, "req", "-new", *KIND, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    (folder / "names").write_text(f"subjectAltName={names}\n")
    sign = ("-req", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl(folder, "x509", *sign, "-in", f"{name}.csr", "-out", f"{name}.pem")
