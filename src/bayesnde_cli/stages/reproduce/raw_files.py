"""The raw files of the experiments: where they come from, and what they must be, to the byte."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bayesnde_cli.artifacts.fingerprint import sha256_file
from bayesnde_cli.errors import BadInput

_UCI = "https://archive.ics.uci.edu/static/public"


class RawSet(NamedTuple):
    """A published data set: its page's or archive's address, and the SHA-256 of its files below the data directory."""

    source: str
    files: dict[str, str]
    archive: str | None = None  # a zip file, which may hold others, with these files in it


RAW_SETS = {
    "bank": RawSet(
        "UCI Bank Marketing (Moro, Rita and Cortez 2014), CC BY 4.0",
        {"bank/bank-full.csv": "d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d"},
        f"{_UCI}/222/bank+marketing.zip",
    ),
    "parktele": RawSet(
        "UCI Parkinsons Telemonitoring (Tsanas and Little 2009), CC BY 4.0",
        {"parktele/parkinsons_updrs.data": "f2c7d5025dec4e92e7feae367a5f7ccf58789a10ac6b54bdf15976c599f9dd39"},
        f"{_UCI}/189/parkinsons+telemonitoring.zip",
    ),
    "pendigits10": RawSet(
        "UCI Pen-Based Recognition of Handwritten Digits (Alpaydin and Alimoglu 1996), CC BY 4.0",
        {
            "pendigits10/pendigits.tes": "8bd03229c5c5291fefe43e45465dd948d2645bf23328b9d993e0b777666b2015",
            "pendigits10/pendigits.tra": "e2b9eb9f0d0467e2b64a4816a3420edf2b8043447576f4b84337aba44a9f97d3",
        },
        f"{_UCI}/81/pen+based+recognition+of+handwritten+digits.zip",
    ),
    "vehicle": RawSet(
        "UCI Statlog Vehicle Silhouettes (Mowforth and Shepherd), CC BY 4.0",
        {
            "vehicle/xaa.dat": "7fd869de06e71e027cfd8d2a4720d0e3cbead77fef5a8a1d81fa628bb61d6d2d",
            "vehicle/xab.dat": "eb9b39becd4d0c4e77e2a5d47732d83960b6418243eac39da261a290178ee0f7",
            "vehicle/xac.dat": "4975a47f907d7dab052518f5aceefab03c9eb50d52b108e7641bc7bf2982ed06",
            "vehicle/xad.dat": "4d026d84e318e4a7d60d207c84475d3caa869f499276bd58cdee386ca628c678",
            "vehicle/xae.dat": "b65fc1395cb068b9f579796969dc80944124c42b5d7cbd92a19b34bfd6173309",
            "vehicle/xaf.dat": "297d6811d98c355819addd03678b8a8ac4f8355ca7c556bae2f1f2427afad97c",
            "vehicle/xag.dat": "e343075bc28293062f1ca82d955c1406235e3d63c419c5ef67ebb9e8516e1eec",
            "vehicle/xah.dat": "4befe2b54c121bc94fbc4599196180b33e646c7a52a345d1f91d90666e260480",
            "vehicle/xai.dat": "74781b1c689c3e4899f6021f55a054bf020cf38f74d699faeb6ad72c724af92e",
        },
        f"{_UCI}/149/statlog+vehicle+silhouettes.zip",
    ),
    "eegeye": RawSet(
        "UCI EEG Eye State (Roesler 2013), CC BY 4.0",
        {"eegeye/EEG Eye State.arff": "693c689be416df0b487b45b5b58a44896fbcd0be72b4ef161d5cc34e2c66c928"},
        f"{_UCI}/264/eeg+eye+state.zip",
    ),
    "odds": RawSet(
        "ODDS, Outlier Detection DataSets (Rayana 2016), odds.cs.stonybrook.edu",
        {
            "odds/cardio.mat": "5e568b6a73711012c481fa6cc984ab9c68e9a4fa44d6aeb3b43efa381c3f695b",
            "odds/pendigits.mat": "7bc32ac83b3d583443acea8b1342a54aaa59eaedb9996af405322f473f3c22bc",
            "odds/shuttle.mat": "b6e396c92354d5dcf5036901e36dc58e2913f2d1a5e138c35a2bedf9c69db899",
        },
    ),
    "mnist": RawSet(
        "MNIST (LeCun, Cortes and Burges), its four IDX files",
        {
            "mnist/t10k-images-idx3-ubyte.gz": "1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be",
            "mnist/t10k-labels-idx1-ubyte.gz": "b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b",
            "mnist/train-images-idx3-ubyte.gz": "0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971",
            "mnist/train-labels-idx1-ubyte.gz": "1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203",
        },
    ),
}  # fmt: skip


def raw_set_of(file: str) -> RawSet:
    """The data set that a file belongs to."""
    return RAW_SETS[file.split("/")[0]]


def found_files(folder: Path, files: Sequence[str]) -> list[Path]:
    """The files below the data directory, checked; the first that is missing or another one is refused."""
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raw = raw_set_of(missing[0])
        way = "add --download to fetch it, or " if raw.archive else ""
        raise BadInput(
            f"{folder / missing[0]} is not there" + (f", and {len(missing) - 1} more" if len(missing) > 1 else ""),
            found=[f"it is a file of {raw.source}", *([f"archive: {raw.archive}"] if raw.archive else [])],
            hint=f"{way}put it there, or say with --data-dir where the files are",
        )
    for file in files:
        try:
            check_file(folder / file, file)
        except OSError as error:
            raise BadInput(
                f"{folder / file} cannot be read", found=error.strerror or str(error), hint="check its permissions"
            ) from error
    return [folder / file for file in files]


def check_file(path: Path, file: str) -> None:
    """Refuse a file that is not the published one."""
    wanted, found = raw_set_of(file).files[file], sha256_file(path)
    if found != wanted:
        raise BadInput(
            f"{path} is not the published file",
            found=[f"SHA-256 {found}", f"expected {wanted}"],
            hint="remove it and get it again, with --download where its archive is public",
        )
