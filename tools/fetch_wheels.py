#!/usr/bin/env python3
"""fetch_wheels.py LIST FOLDER: fetches the wheels of a hash-pinned list, and goes on in the middle of a file after an
interruption, which pip cannot. Used by tools/setup, which falls back to pip when this fails (a package index with a
password, for one). A wheel is found on its index page by its hash, so the Python that runs this does not matter.
"""
import configparser
import hashlib
import os
import pathlib
import re
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

ATTEMPTS = 5
TIMEOUT_SECONDS = 60
PIECE = 1 << 20


def pip_setting(name, default):
    """What pip would use: PIP_NAME, else the user's or the system's pip.conf."""
    if value := os.environ.get("PIP_" + name.upper().replace("-", "_")):
        return value
    config = configparser.ConfigParser(interpolation=None)
    home = pathlib.Path.home()
    config.read(["/etc/pip.conf", home / ".pip/pip.conf", home / ".config/pip/pip.conf"])
    return config.get("global", name, fallback=default)


def pinned(list_file):
    """(name, sha256) of each line NAME==VERSION --hash=sha256:HEX."""
    return re.findall(r"^([\w-]+)==\S+ --hash=sha256:([0-9a-f]{64})$", list_file.read_text(), re.MULTILINE)


def open_url(url, first_byte=0):
    certificates = pip_setting("cert", None)
    context = ssl.create_default_context(cafile=certificates)
    headers = {"User-Agent": "trainer-setup", "Accept": "text/html"}
    if first_byte:
        headers = {"User-Agent": "trainer-setup", "Range": f"bytes={first_byte}-"}
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS, context=context)


def find_wheel(name, digest):
    """The address of the file with this hash on the package's index page."""
    page = pip_setting("index-url", "https://pypi.org/simple").rstrip("/") + f"/{name}/"
    with open_url(page) as answer:
        text = answer.read().decode()
        page = answer.url
    if match := re.search(rf'href="([^"#]+)#sha256={digest}"', text):
        return urllib.parse.urljoin(page, match[1])
    raise LookupError(f"{page} lists no {name} with the pinned hash")


def file_digest(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def append(url, part, show):
    """Appends what is missing to `part`; returns when the server says that it is complete."""
    done = part.stat().st_size if part.exists() else 0
    try:
        answer = open_url(url, done)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing after these bytes: it is complete, or longer than it may be
            return
        raise
    with answer:
        if done and answer.status != 206:  # a server without ranges sends all of it again
            done = 0
        total = done + int(answer.headers.get("Content-Length", 0))
        with open(part, "r+b" if done else "wb") as file:
            file.seek(done)
            while piece := answer.read(PIECE):
                file.write(piece)
                done += len(piece)
                show(done, total)
        if done < total:
            raise ConnectionError(f"{url} ended after {done} of {total} bytes")


def fetch(name, digest, folder):
    """Fetches one wheel into `folder`, unless it is there; its name is that of the index."""
    url = find_wheel(name, digest)
    wheel = folder / urllib.parse.unquote(url.rsplit("/", 1)[1])
    if wheel.exists() and file_digest(wheel) == digest:
        return
    part = wheel.with_name(wheel.name + ".part")
    terminal = sys.stderr.isatty()

    def show(done, total):
        if terminal:
            print(f"\r  {name}: {done >> 20} of {total >> 20} MB ", end="", file=sys.stderr, flush=True)

    for attempt in range(ATTEMPTS):
        try:
            append(url, part, show)
            break
        except (OSError, urllib.error.URLError) as error:  # timeouts and broken connections among them
            if attempt + 1 == ATTEMPTS:
                raise
            print(f"  {name}: {error}; trying again", file=sys.stderr)
            time.sleep(2 ** attempt)
    if terminal:
        print(file=sys.stderr)
    if file_digest(part) != digest:
        part.unlink()
        raise ValueError(f"{url} does not have the pinned hash; it was removed")
    os.replace(part, wheel)


def main():
    list_file, folder = map(pathlib.Path, sys.argv[1:])
    try:
        for name, digest in pinned(list_file):
            fetch(name, digest, folder)
    except (OSError, LookupError, ValueError) as error:
        print(f"fetch_wheels.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
