"""What it takes to keep the optimiser's state in the host's memory, in closed form.

    N  numbers that a device steps on, its shard      R  bytes/s of the wire to the host, each way

Gradients go to the host as they are computed with, and new weights come back so: 2N + 2N bytes in 16 bits, the least
for any split of the work that leaves the products on the device. Adam runs on the host, over as many bytes as it would
on the device, at the speed of the host's memory.

Nothing is hidden here: ZeRO-Offload lets gradients travel beside backward, and an update may run a step late.

Source: Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training", section 4.
"""

from course_lib.costs.checks import above_zero


def offload_seconds(num_parameters: float, wire_bytes_per_s: float, gradient_bytes: float = 2, weight_bytes: float = 2
                    ) -> float:
    """Seconds of a step's way to the host: N gradients there, N weights back, one after the other."""
    return num_parameters * (gradient_bytes + weight_bytes) / above_zero(wire_bytes_per_s, "wire_bytes_per_s")
