"""Resumes a real Caffe2 job from a folder of checkpoints and checks the totals that it comes to.

    caffe2_resume.py FOLDER EPOCH

The job is the one of the fixtures (`golden/job`): for each of three trainers a dataset of 0..9, a reader over it, and a total of 100 that
every epoch adds three items to. After epochs 1 to 4 the total is 103, 115, 136, 145. The position of the reader is a blob of the
checkpoint, so a job that goes on from epoch E of FOLDER must end at epoch 4 with 145; and loading E or a later epoch must give its total.
FOLDER is not changed: the job runs on a copy.
"""
import os
import shutil
import sys
import tempfile

import numpy as np
from caffe2.python import workspace
from caffe2.python.checkpoint import Job, JobRunner, MultiNodeCheckpointManager
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


def expected(epoch):
    return {each: total for each, total in TOTALS.items() if each >= epoch}


def resumed(folder, number, epoch):
    """Trains one trainer from `epoch` on; gives its last epoch, its total, and the totals that its checkpoints load to."""
    workspace.ResetWorkspace()
    job, total = trainer(number)
    session = LocalSession(workspace.C.Workspace())
    manager = MultiNodeCheckpointManager(folder, "minidb")
    compiled = job.compile(LocalSession) or job
    last = JobRunner(compiled, manager, resume_from_epoch=epoch).train(session)
    end = int(session._ws.fetch_blob(str(total))[0])
    loaded = {}
    # The names that the manager loads are those of `epoch`; ours has one more than Caffe2's own before it.
    for each in expected(epoch):
        session.run(manager.load(each))
        loaded[each] = int(session._ws.fetch_blob(str(total))[0])
    return last, end, loaded


def main(folder, epoch):
    wrong = 0
    with tempfile.TemporaryDirectory() as copy:
        for name in sorted(os.listdir(folder)):
            if name.startswith("trainer_"):
                shutil.copy(os.path.join(folder, name), copy)
        for number in range(3):
            last, end, loaded = resumed(copy, number, epoch)
            good = (last, end, loaded) == (4, 145, expected(epoch))
            wrong += not good
            print("trainer_%d from epoch %d: last epoch %d, total %d, checkpoints %s: %s" % (
                number, epoch, last, end, loaded, "right" if good else "WRONG"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
