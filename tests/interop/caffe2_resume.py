"""Resumes a real Caffe2 job from a folder of checkpoints and checks the totals that it comes to.

    caffe2_resume.py FOLDER EPOCH

The job is the one of the fixtures (`golden/job`): for each of three trainers a dataset of 0..9, a reader over it, and a total of 100 that
every epoch adds three items to. After epochs 1 to 4 the total is 103, 115, 136, 145. The position of the reader is a blob of the
checkpoint, so a job that goes on from epoch E of FOLDER must end at epoch 4 with 145, with both of Caffe2's managers.

Before that, every checkpoint of FOLDER must load to the total of its epoch: before, because the resumed job writes the later ones anew.
From epoch 4 on nothing is left to train, and only the loading is checked. FOLDER is not changed: the jobs run on copies.
"""
import os
import shutil
import sys
import tempfile

import numpy as np
from caffe2.python import workspace
from caffe2.python.checkpoint import CheckpointManager, Job, JobRunner, MultiNodeCheckpointManager
from caffe2.python.dataio import ReaderWithLimit
from caffe2.python.dataset import Dataset
from caffe2.python.net_builder import ops
from caffe2.python.pipeline import pipe
from caffe2.python.schema import ConstRecord, Struct
from caffe2.python.session import LocalSession
from caffe2.python.task import Node, Task

TOTALS = {1: 103, 2: 115, 3: 136, 4: 145}


def trainer(number):
    """The job of one trainer, and the blob that holds its total."""
    with Job() as job, Node("trainer_%d" % number):
        with job.init_group, Task():
            numbers = ConstRecord(ops, Struct(("val", np.arange(10))))
            everything = Dataset(numbers, name="dataset:%d" % number).reader(ops)
            total = ops.Const([100])

        def add(record):
            ops.Add([total, record.val()], [total])

        three = ReaderWithLimit(everything, num_iter=3)
        pipe(three, processor=add)
        job.add_stop_condition(three.data_finished())
    return job, total


def managers(folder, number):
    """Caffe2's manager of one node and the one of many; the files are the same."""
    return {
        "CheckpointManager": lambda: CheckpointManager(folder, "trainer_%d" % number, "minidb"),
        "MultiNodeCheckpointManager": lambda: MultiNodeCheckpointManager(folder, "minidb"),
    }


def loaded(job, total, manager, epoch):
    """The total in the checkpoint of `epoch`, and in `manager`, which is new: it takes the names of blobs from that checkpoint."""
    session = LocalSession(workspace.C.Workspace())
    session.run(manager.init(job.nodes_to_checkpoint(), retrieve_from_epoch=epoch))
    session.run(manager.load(epoch))
    return int(session._ws.fetch_blob(str(total))[0])


def resumed(job, total, manager, epoch):
    """Trains from `epoch` on, in a workspace with nothing in it; gives the last epoch and the total."""
    session = LocalSession(workspace.C.Workspace())
    last = JobRunner(job, manager, resume_from_epoch=epoch).train(session)
    return last, int(session._ws.fetch_blob(str(total))[0])


def check(folder, number, epoch):
    """Whether all is right with one trainer."""
    # Once for both managers: Caffe2 gives the blobs of a second job of the same node other names.
    job, total = trainer(number)
    job.compile(LocalSession)
    right = True
    for name in managers(folder, number):
        with tempfile.TemporaryDirectory() as copy:
            for file in os.listdir(folder):
                if file.startswith("trainer_%d." % number):
                    shutil.copy(os.path.join(folder, file), copy)
            new = managers(copy, number)[name]
            there = {e: t for e, t in TOTALS.items() if os.path.exists(os.path.join(copy, "trainer_%d.%d" % (number, e)))}
            totals = {e: loaded(job, total, new(), e) for e in there}
            good = epoch in there and totals == there
            said = "checkpoints %s" % totals
            if epoch in there and epoch < 4:
                last, end = resumed(job, total, new(), epoch)
                good = good and (last, end) == (4, 145)
                said += ", from epoch %d to %d with total %d" % (epoch, last, end)
            print("trainer_%d, %s: %s: %s" % (number, name, said, "right" if good else "WRONG"))
            right = right and good
    return right


def main(folder, epoch):
    # All of them, even after one that is wrong.
    return 0 if all([check(folder, number, epoch) for number in range(3)]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
