"""Reads dbs with libraries that are not ours, and compares their records with those of a minidb file.

    stores_read.py FILE.minidb [--lmdb DIR] [--leveldb DIR] [--rocksdb DIR]

The minidb file, which plain Python reads here, is the reference: the others are copies of it.
"""
import argparse
import struct
import sys


def minidb(path):
    with open(path, "rb") as file:
        data = file.read()
    records, at = {}, 0
    while at < len(data):
        key_len, value_len = struct.unpack_from("<ii", data, at)
        key = data[at + 8 : at + 8 + key_len]
        assert key not in records, key
        records[key] = data[at + 8 + key_len : at + 8 + key_len + value_len]
        at += 8 + key_len + value_len
    return records


def lmdb(path):
    import lmdb

    with lmdb.open(path, readonly=True, lock=False) as env, env.begin() as txn:
        return {bytes(key): bytes(value) for key, value in txn.cursor()}


def leveldb(path):
    import plyvel

    with plyvel.DB(path, create_if_missing=False) as db:
        before = dict(db)
        # Whatever LevelDB itself makes of the tables must hold the same.
        db.compact_range()
        assert dict(db) == before
        return before


def rocksdb(path):
    from rocksdict import AccessType, Options, Rdict

    db = Rdict(path, options=Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        return {bytes(key): bytes(value) for key, value in db.items()}
    finally:
        db.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minidb")
    for name in ("lmdb", "leveldb", "rocksdb"):
        parser.add_argument("--" + name)
    args = parser.parse_args()
    expected = minidb(args.minidb)
    wrong = 0
    for name, read in (("lmdb", lmdb), ("leveldb", leveldb), ("rocksdb", rocksdb)):
        path = getattr(args, name)
        if path:
            found = read(path)
            wrong += found != expected
            print(f"{name}: {len(found)} of {len(expected)} records, {'equal' if found == expected else 'NOT EQUAL'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
