"""Reads dbs with libraries that are not ours (py-lmdb, plyvel, rocksdict; plain Python for minidb) and compares their records.

    stores_read.py (--lmdb DIR | --leveldb DIR | --rocksdb DIR | --minidb FILE)... EXPECTED.json
    stores_read.py (--lmdb DIR | --leveldb DIR | --rocksdb DIR | --minidb FILE)... FILE.minidb
    stores_read.py (--lmdb DIR | --leveldb DIR | --rocksdb DIR | --minidb FILE) --dump

EXPECTED.json has all records in the order of the db, and --dump writes it:
{"records": [{"key_hex": "...", "value_sha256": "...", "value_len": n}, ...]}. With FILE.minidb the dbs must be copies of that file, their
keys in the order of their bytes.
"""
import argparse
import contextlib
import hashlib
import json
import os
import shutil
import struct
import sys
import tempfile


@contextlib.contextmanager
def copied(path):
    """LevelDB writes to a directory that it only reads (a new manifest and log), RocksDB a log file: they get a copy."""
    with tempfile.TemporaryDirectory() as folder:
        yield shutil.copytree(path, os.path.join(folder, "db"))


def minidb(path):
    with open(path, "rb") as file:
        data = file.read()
    records, at = [], 0
    while at < len(data):
        key_len, value_len = struct.unpack_from("<ii", data, at)
        end = at + 8 + key_len + value_len
        if key_len <= 0 or value_len < 0 or end > len(data):
            sys.exit(f"{path}: no whole record at {at}")
        records.append((data[at + 8 : at + 8 + key_len], data[at + 8 + key_len : end]))
        at = end
    return records


def lmdb(path):
    import lmdb

    # lock=False: without a lock file of its own; a directory is not written to.
    with lmdb.open(path, readonly=True, lock=False) as env, env.begin() as txn:
        return [(bytes(key), bytes(value)) for key, value in txn.cursor()]


def leveldb(path):
    import plyvel

    with copied(path) as copy, plyvel.DB(copy, create_if_missing=False, paranoid_checks=True) as db:
        before = list(db)
        # Whatever LevelDB itself makes of the tables must hold the same.
        db.compact_range()
        if list(db) != before:
            sys.exit(f"{path}: LevelDB's compaction changes the records")
        return before


def rocksdb(path):
    from rocksdict import AccessType, Options, Rdict

    with copied(path) as copy:
        db = Rdict(copy, options=Options(raw_mode=True), access_type=AccessType.read_only())
        try:
            return [(bytes(key), bytes(value)) for key, value in db.items()]
        finally:
            db.close()


READERS = {"lmdb": lmdb, "leveldb": leveldb, "rocksdb": rocksdb, "minidb": minidb}


def described(records):
    return [{"key_hex": key.hex(), "value_sha256": hashlib.sha256(value).hexdigest(), "value_len": len(value)} for key, value in records]


def compare(name, found, expected):
    """Says what differs first; gives whether nothing does."""
    same = sum(a == b for a, b in zip(found, expected))
    equal = found == expected
    print(f"{name}: {len(found)} records, {len(expected)} expected, {same} the same: {'equal' if equal else 'NOT EQUAL'}")
    if not equal:
        at = next((i for i, (a, b) in enumerate(zip(found, expected)) if a != b), min(len(found), len(expected)))
        print(f"  record {at}: {found[at:at + 1]} for {expected[at:at + 1]}")
    return equal


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("expected", nargs="?", metavar="EXPECTED.json or FILE.minidb")
    parser.add_argument("--dump", action="store_true", help="write the records as JSON")
    for name in READERS:
        parser.add_argument("--" + name)
    args = parser.parse_args()
    given = [name for name in READERS if getattr(args, name)]
    if not given or bool(args.expected) == args.dump or args.dump and len(given) > 1:
        parser.error("some db, and either what to expect of it or, for one db, --dump")
    found = {name: described(READERS[name](getattr(args, name))) for name in given}
    if args.dump:
        json.dump({"records": found[given[0]]}, sys.stdout, indent=1)
        print()
        return 0
    if args.expected.endswith(".json"):
        with open(args.expected) as file:
            records = json.load(file)["records"]
        expected = [{key: record[key] for key in ("key_hex", "value_sha256", "value_len")} for record in records]
    else:
        expected = described(sorted(minidb(args.expected)))
    return 0 if all([compare(name, found[name], expected) for name in given]) else 1


if __name__ == "__main__":
    sys.exit(main())
