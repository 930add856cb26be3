"""Certificates for tests, by the openssl command."""

import shutil
import subprocess
from pathlib import Path

import pytest


def make_authority(folder: Path) -> Path:
    """Fill a folder with ca.pem, server.pem and client.pem, each with its key beside it as NAME.key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes")
    openssl("req", "-x509", *key, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1")
    for name in ("server", "client"):
        openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    return folder
