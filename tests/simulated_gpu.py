"""A GPU that only keeps time, for tests of what measures one."""

FLUSH_US = 25.0
GPU = {"name": "NVIDIA Test", "capability": "9.0", "sms": 132, "memory_gib": 140.0, "l2_mib": 50.0,
       "slug": "nvidia-test"}


class SimulatedGpu:
    """Host and GPU as two clocks in microseconds: work queued by the one is done in order by the other."""

    def __init__(self):
        self.host = self.gpu = 0.0
        self.log = []

    def work(self, gpu_us, host_us=2.0, label=None):
        self.host += host_us
        self.gpu = max(self.gpu, self.host) + gpu_us
        if label:
            self.log.append(label)

    def flush_l2(self):
        self.work(FLUSH_US, label="flush")

    def mark(self):
        return max(self.gpu, self.host)

    def passed(self, event):
        return event <= self.host

    def microseconds(self, start, stop):
        return stop - start

    def synchronize(self):
        self.host = max(self.host, self.gpu)
        self.log.append("synchronize")

    def now(self):
        self.host += 1.0
        return self.host / 1e6

    def variant(self, label, gpu_us, host_us=2.0):
        def call(tensors_of_set):
            self.work(gpu_us, host_us, label=label)
            return tensors_of_set
        return call
