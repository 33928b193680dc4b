"""A cluster of any device that facts knows: its nodes, wires, and what it can compute."""

import pytest

from course_lib.costs.network import TIMED_OPERATIONS, Network
from course_lib.facts import ACCELERATORS
from course_lib.planner import Cluster, cluster


def wires(of: Cluster) -> Network:
    return of.network(across_s=1e-5, share=1.0)


def test_every_device_makes_a_cluster_with_finite_rates():
    for of in (cluster(device.name, 144) for device in ACCELERATORS):
        assert all(0 < wires(of).group(n).bytes_per_s(op) < 1e13 for op in TIMED_OPERATIONS for n in (2, 8, 144))
        assert 0.5 < of.matmul_flops_per_s / of.peak_flops_per_s() < 0.9
        assert 0.9 * of.device.memory_bytes < of.usable_bytes < 1.1 * of.device.memory_bytes


def test_a_node_is_as_large_as_its_nvlink_domain_unless_told_otherwise():
    assert cluster("GB200", 576).devices_per_node == 72 and cluster("GB200", 576, 4).devices_per_node == 4
    assert cluster("H800", 64).devices_per_node == 8 and cluster("GH200", 64).devices_per_node == 4
    in_a_rack, across = (wires(cluster("GB300", 144)).group(n).bytes_per_s("all_to_all") for n in (72, 144))
    assert in_a_rack > 3 * across and in_a_rack == pytest.approx(
        wires(cluster("B300", 8)).group(8).bytes_per_s("all_to_all"))


def test_formats_have_the_peaks_of_their_width():
    of = cluster("GB300", 8)
    assert of.peak_flops_per_s("mxfp8") == of.peak_flops_per_s("fp8") == 2 * of.peak_flops_per_s("bf16") == 5e15
    assert of.peak_flops_per_s("nvfp4") == of.peak_flops_per_s("fp4") == 15e15
    for device, precision, told in (("A100", "mxfp8", "A100 has no peak for 'fp8'"), ("H100", "nvfp4", "for 'fp4'")):
        with pytest.raises(ValueError, match=told):
            cluster(device, 8).peak_flops_per_s(precision)


@pytest.mark.parametrize("of, n, stride, op, gbytes_per_s, rel", [
    # Bekman measured all-reduces of 4 GiB: in a mesh two devices have one wire of seven
    (cluster("MI300X", 8), 2, 1, "all_reduce", 47.7, 0.1), (cluster("MI300X", 8), 8, 1, "all_reduce", 312.9, 0.1),
    (cluster("H800", 8), 8, 1, "all_gather", 160, 0.05),  # DeepSeek-V3's report
    # consumer cards share one network card; eight groups at once
    (cluster("RTX 4090", 16), 16, 1, "all_gather", 1.25, 1e-6),
    (cluster("RTX 4090", 16), 2, 8, "ring", 1.25 / 8, 1e-6)])
def test_wires_reach_what_was_measured_and_share_what_is_shared(of, n, stride, op, gbytes_per_s, rel):
    assert wires(of).group(n, stride).bytes_per_s(op) / 1e9 == pytest.approx(gbytes_per_s, rel=rel)


def test_a_network_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="devices_per_node=-8"):
        cluster("H100", 64, devices_per_node=-8)
