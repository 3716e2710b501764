"""Point clouds: meshes, families, random changes, and the official files."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
import torch
from evidence.datasets import kicad
from evidence.datasets.kicad_wrl import parse_vrml

from fredholm.data import CloudAugment, PointDataset
from fredholm.errors import DataError, OptionError, ShapeError
from fredholm.lab import data
from fredholm.lab.data import clients
from fredholm.lab.data.meshes import parse_off, sample_surface

CUBE = b"""OFF
8 6 0
0 0 0
1 0 0
1 1 0
0 1 0
0 0 1
1 0 1
1 1 1
0 1 1
4 0 3 2 1
4 4 5 6 7
4 0 1 5 4
4 1 2 6 5
4 2 3 7 6
4 3 0 4 7
"""
VRML = b"""#VRML V2.0 utf8
Shape { geometry IndexedFaceSet { coordIndex [0,1,2,-1, 0,2,3,-1]
coord Coordinate { point [0 0 0, 1 0 0, 1 1 0, 0 1 0] } } }
Shape { geometry IndexedFaceSet { coordIndex [0,1,2,3,-1]
coord DEF c Coordinate { point [0 0 5,1 0 5,1 1 5,0 1 5] } } }
"""


def test_points_are_sampled_uniformly_from_meshes():
    vertices, triangles = parse_off(CUBE, "cube.off")
    assert (vertices.shape, triangles.shape) == ((8, 3), (12, 3))
    joined, _ = parse_off(CUBE.replace(b"OFF\n8", b"OFF8"), "cube.off")
    assert np.array_equal(joined, vertices)
    points = sample_surface(vertices, triangles, 4000, key=3)
    assert np.abs(points.mean(0)).max() < 1e-9
    assert np.linalg.norm(points, axis=1).max() == pytest.approx(1.0)
    side = np.abs(points).max()
    on_face = (np.abs(np.abs(points) - side) < 0.05 * side).any(1)
    assert on_face.all(), "all points lie on the six faces"
    shares = [
        (points[:, axis] * sign > 0.95 * side).mean() for axis in range(3) for sign in (1, -1)
    ]
    assert np.abs(np.array(shares) - 1 / 6).max() < 0.04
    vertices, triangles = parse_vrml(VRML, "part.wrl")
    assert triangles.tolist() == [[0, 1, 2], [0, 2, 3], [4, 5, 6], [4, 6, 7]]
    assert vertices[4:, 2].tolist() == [5] * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parse_off(b"PLY\n", "a.off"), "a.off: no OFF mesh"),
        (lambda: parse_off(CUBE[:90], "a.off"), "no OFF mesh"),
        (
            lambda: parse_off(CUBE.replace(b"4 3 0 4 7", b"4 3 0 4 9"), "a.off"),
            "a face of 4 corners",
        ),
        (lambda: parse_vrml(b"#VRML", "a.wrl"), "got 0 lists of points"),
        (
            lambda: parse_vrml(VRML.replace(b"0,2,3", b"0,2,7"), "a.wrl"),
            "got one with point 7",
        ),
        (
            lambda: sample_surface(np.zeros((3, 3)), np.array([[0, 1, 2]]), 4, 0),
            "expected a surface with an area",
        ),
        (
            lambda: sample_surface(np.full((3, 3), np.nan), np.array([[0, 1, 2]]), 4, 0),
            "expected a surface with an area",
        ),
    ],
)
def test_damaged_meshes_are_refused(call, message):
    with pytest.raises(DataError, match=message):
        call()


def test_wrong_clouds_are_refused():
    clouds = torch.rand(3, 8, 3)
    labels = torch.tensor([0, 1, 0])
    nan = torch.full((1, 8, 3), torch.nan)
    with pytest.raises(DataError, match="got no point in cloud 1"):
        PointDataset("x", "train", torch.cat([clouds[:1], nan, clouds[2:]]), labels, ("a", "b"))
    with pytest.raises(DataError, match="infinite"):
        PointDataset(
            "x", "train", clouds.index_fill(0, torch.tensor([2]), torch.inf), labels, ("a", "b")
        )
    with pytest.raises(ShapeError, match="points 9"):
        PointDataset("x", "train", clouds, labels, ("a", "b"), points=9)
    with pytest.raises(DataError, match="numbers from 0 to 0"):
        PointDataset("x", "train", clouds, labels, ("a",))


def test_random_changes_depend_on_the_index_and_preserve_distances():
    clouds = torch.rand(3, 50, 3) - 0.5
    indices = torch.tensor([4, 7, 9])
    augment = CloudAugment(scale=0.3, rotate=True)
    both = augment(clouds, indices, seed=0, epoch=2)
    alone = augment(clouds[1:2], indices[1:2], seed=0, epoch=2)
    assert torch.allclose(both[1:2], alone)
    assert not torch.allclose(both, augment(clouds, indices, seed=0, epoch=3))
    before, after = clouds.norm(dim=-1).sort().values, both.norm(dim=-1).sort().values
    factor = after / before
    assert (factor.std(1) < 1e-4).all(), "a turn and a scale"
    assert ((factor > 1 / 1.31) & (factor < 1.31)).all()
    assert torch.allclose(
        both[..., 2].sort().values / factor.mean(1, keepdim=True),
        clouds[..., 2].sort().values,
        atol=1e-4,
    )
    noise = CloudAugment(resample=False, jitter=0.1)(clouds, indices, seed=0, epoch=0) - clouds
    assert noise.std().item() == pytest.approx(0.1, rel=0.15)
    assert CloudAugment(resample=False)(clouds, indices, seed=0, epoch=0).equal(clouds)
    with pytest.raises(OptionError, match="expected 0 or more"):
        CloudAugment(jitter=-1.0)


@pytest.mark.parametrize("options", [{"scale": 0.5}, {"jitter": 0.1}])
@pytest.mark.parametrize(("coordinates", "changed"), [(2, 2), (None, 3), (4, 4)])
def test_random_changes_affect_only_coordinates(coordinates, changed, options):
    clouds = torch.rand(3, 9, 5)
    labels = torch.zeros(3).long()
    data = PointDataset("x", "train", clouds, labels, ("a",), coordinates=coordinates)
    call = {"indices": torch.arange(3), "seed": 0, "epoch": 1}
    before, after = (data.augmentation(given)(clouds, **call) for given in ({}, options))
    assert (before != after).all((0, 1)).tolist() == [i < changed for i in range(5)]


def test_a_rotation_needs_three_coordinates():
    clouds = torch.rand(3, 9, 2)
    labels = torch.zeros(3).long()
    with pytest.raises(OptionError, match="rotate: expected clouds of three coordinates"):
        PointDataset("x", "train", clouds, labels, ("a",)).augmentation({"rotate": True})


def test_sampled_points_are_at_most_those_of_the_cloud():
    stored = torch.rand(3, 50, 4)
    stored[1, 9:], stored[2, 3:] = torch.nan, torch.nan
    data = PointDataset("ragged", "train", stored, torch.zeros(3).long(), ("a", "b"), points=8)
    augment = data.augmentation({})
    before = data.batch([0, 1, 2])[0]
    assert augment.resample
    drawn = data.batch([0, 1, 2], lambda clouds: augment(clouds, torch.arange(3), seed=0, epoch=1))[
        0
    ]
    there = ~drawn.isnan().any(-1)
    assert there.sum(1).tolist() == [8, 8, 3] == (~before.isnan().any(-1)).sum(1).tolist()
    assert bool(there[2, :3].all())  # what is not there stays behind
    assert not drawn[1].equal(before[1])
    known = {tuple(point) for point in stored[1, :9].tolist()}
    assert {tuple(point) for point in drawn[1].tolist()} < known


def test_families_stay_in_one_split():
    names = [
        f"Package_DIP/DIP-{n}_W{w}mm{kind}"
        for n in range(4, 44, 2)
        for w in (7.62, 10.16)
        for kind in ("", "_Socket")
    ]
    names += [
        f"Varistor/RV_Disc_D{d}mm_W{w}mm" for d in (7, 9, 12, 15, 20) for w in (3.1, 4.2, 5.3, 6.4)
    ]
    parts = kicad.split_families(names, (0.1, 0.2))
    families: dict = {}
    for name, part in zip(names, parts):
        folder, _, rest = name.partition("/")
        families.setdefault((folder, kicad.family_of(rest)), set()).add(part)
    assert len(families) == 9
    assert all(len(found) == 1 for found in families.values())
    for folder in ("Package_DIP", "Varistor"):
        assert 0 in {min(found) for (kind, _), found in families.items() if kind == folder}
    assert parts == kicad.split_families(names, (0.1, 0.2))


def test_kicad_is_sampled_when_fetched(tmp_path, monkeypatch):
    archive = tmp_path / "parts.tar"
    with tarfile.open(archive, "w") as tar:
        for i in range(70):
            member = tarfile.TarInfo(
                f"./usr/share/kicad/3dmodels/Package_DIP.3dshapes/DIP-{i}_W{i % 9}mm.wrl"
            )
            content = VRML if i else b"#VRML V2.0 utf8 Transform {}"
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

    def tar_stream(path, client):
        assert client is clients.APT
        return tarfile.open(path)

    monkeypatch.setattr(kicad, "tar_stream", tar_stream)
    root = tmp_path / "kicad"
    counted = []
    root.mkdir()
    kicad.derive(archive, root, counted.append)
    assert len(counted) == 69, "the one without a mesh is left out"
    train = data.create_dataset("kicad", "train", path=root, options={"points": 40})
    test = data.create_dataset(
        "kicad", "test", path=root, options={"points": 40, "split": "random"}
    )
    assert train.classes == ("Package_DIP",)
    clouds, _ = train.batch([0, 1])
    assert clouds.shape == (2, 40, 3)
    assert clouds.norm(dim=-1).max() <= 1.001
    assert 0 < len(test) < len(train)
    (root / "names.txt").write_text("one\n")
    with pytest.raises(DataError, match="fetch kicad again"):
        data.create_dataset("kicad", "train", path=root)


def test_meshes_of_modelnet_are_read(tmp_path):
    for part in ("train", "test"):
        for kind in ("bed", "sofa"):
            (tmp_path / kind / part).mkdir(parents=True)
            for i in range(4):
                (tmp_path / kind / part / f"{kind}_{i}.off").write_bytes(CUBE)
    train = data.create_dataset(
        "modelnet40", "train", path=tmp_path, val_fraction=0.25, options={"points": 64}
    )
    test = data.create_dataset("modelnet40", "test", path=tmp_path)
    assert (len(train), len(test), train.classes) == (6, 8, ("bed", "sofa"))
    assert train.batch([0])[0].shape == (1, 64, 3)
    (tmp_path / "bed" / "test" / "bed_0.off").write_bytes(b"OFF\n1")
    with pytest.raises(DataError, match=r"bed_0\.off"):
        data.create_dataset("modelnet40", "test", path=tmp_path)
    with pytest.raises(OptionError, match="expected path"):
        data.create_dataset("modelnet40", "train")


def test_hdf5_files_of_modelnet_and_scanobjectnn_are_read(tmp_path):
    h5py = pytest.importorskip("h5py")

    def write(name: str, n: int) -> None:
        with h5py.File(tmp_path / name, "w") as file:
            file["data"] = np.random.default_rng(n).random((n, 32, 3), dtype=np.float32)
            file["label"] = (np.arange(n) % 2).astype(np.uint8)[:, None]

    (tmp_path / "shape_names.txt").write_text("airplane\nbathtub\n")
    for part, n in (("train", 6), ("test", 4)):
        (tmp_path / f"{part}_files.txt").write_text(
            f"data/modelnet40_ply_hdf5_2048/ply_data_{part}0.h5\n"
        )
        write(f"ply_data_{part}0.h5", n)
    test = data.create_dataset("modelnet40", "test", path=tmp_path)
    assert (len(test), test.clouds.shape[1], test.classes) == (4, 32, ("airplane", "bathtub"))
    assert test.clouds.norm(dim=-1).amax(1).tolist() == pytest.approx([1.0] * 4)
    write("training_objectdataset.h5", 10)
    write("test_objectdataset.h5", 3)
    assert len(data.create_dataset("scanobjectnn", "test", path=tmp_path)) == 3
    assert len(data.create_dataset("scanobjectnn", "train", path=tmp_path, val_fraction=0.2)) == 8
    (tmp_path / "test_objectdataset.h5").write_bytes(b"no HDF5")
    with pytest.raises(DataError, match="not a valid HDF5 file"):
        data.create_dataset("scanobjectnn", "test", path=tmp_path)
