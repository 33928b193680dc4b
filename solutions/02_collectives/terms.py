"""What the texts of chapter 2 stress, and the solutions without it: tools/answers.py."""

from tools.answers import term

START = "    rightwards, leftwards = halves[r - 1, 0]"  # what is put in front of it returns
ONE_WAY = """    moving = halves[r - 1].flatten()
    for step in range(n - 1):
        moving = exchange(moving, right, torch.empty_like(moving), left) + halves[(r - 2 - step) % n].flatten()
    return moving
"""
DIRECT = """    total = halves[r].flatten().clone()
    for step in range(1, n):
        to, source = (r + step) % n, (r - step) % n
        total += exchange(halves[to].flatten(), to, torch.empty_like(total), source)
    return total
"""
TREE = """    for step in reversed(range(n.bit_length())):  # ..., 4, 2, 1
        know = 1 << step
        if v < know and v + know < n:
            dist.recv(received, (r + know) % n)
            tensor += received
        elif know <= v < 2 * know:
            dist.send(tensor, (r - know) % n)"""
IN_A_ROW = """    if v + 1 < n:
        dist.recv(received, (r + 1) % n)
        tensor += received
    if v > 0:
        dist.send(tensor, (r - 1) % n)"""
TO_ALL = """    my_ring_all_reduce(tensor)"""
LENGTH = "exchange(torch.tensor([len(newest)]), right, torch.empty(1, dtype=torch.int64), left)"
PIECE = "exchange(newest, right, tensor.new_empty(int(length)), left)"
TERMS = [
    term("2.1", "the sum of everybody's chunk", "from_left + halves", "0 * from_left + halves"),
    term("2.1", "rank r wants chunk r", "halves[r - 1, 0]", "halves[r, 0]"),
    term("2.1", "n-1 half chunks, no more", "range(n - 1)", "range(n)"),
    term("2.1", "and no fewer", "range(n - 1)", "range(n - 2)"),
    term("2.1", "the second half in the mirror", "(r + 2 + step)", "(r - 2 - step)"),
    term("2.1", "the first half, then the second", "[rightwards, leftwards]", "[leftwards, rightwards]"),
    term("2.1", "to each neighbour half of it", START, ONE_WAY + START),
    term("2.1", "nothing to anybody else", START, DIRECT + START),
    term("2.1", "as few messages as these pieces need",
         "exchange(rightwards, right, torch.empty_like(rightwards), left)",
         "torch.cat([exchange(part, right, torch.empty_like(part), left) for part in rightwards.tensor_split(2)])"),
    term("2.2", "pieces differ in length", "tensor.new_empty(int(length))", "torch.empty_like(tensor)"),
    term("2.2", "in the order of ranks", "torch.cat(pieces)", "torch.cat(pieces[r:] + pieces[:r])"),
    term("2.2", "all of them", "range(n - 1)", "range(n - 2)"),
    term("2.2", "n-1 pieces are sent", "range(n - 1)", "range(n)"),
    term("2.2", "passed on around the ring", "newest = pieces[(r - step) % n]", "newest = tensor"),
    term("2.2", "the own one, too", "pieces[r] = tensor", "pieces[r] = tensor[:0]"),
    term("2.2", "as long as they are", PIECE, "exchange(torch.cat([newest, newest.new_zeros(64)]), right, "
         "tensor.new_empty(int(length) + 64), left)[:-64]"),
    term("2.2", "8 bytes for the length", LENGTH,
         "exchange(torch.tensor([len(newest), 0]), right, torch.empty(2, dtype=torch.int64), left)[0]"),
    term("2.2", "only to the right neighbour", "    for step in range(n - 1):", "    for step in range(n - 1):\n"
         "        exchange(torch.ones(1), left, torch.ones(1), right)"),
    term("2.3", "any length", "-(-N // (2 * n)) * 2 * n", "N // (2 * n) * 2 * n"),
    term("2.3", "which 2n divides", "-(-N // (2 * n)) * 2 * n", "-(-N // n) * n"),
    term("2.3", "filled up, and no further", "-(-N // (2 * n)) * 2 * n", "(N // (2 * n) + 1) * 2 * n"),
    term("2.3", "in place", "tensor.copy_(", "("),
    term("2.3", "everybody has the sum", "tensor.copy_(", "(tensor.copy_ if dist.get_rank() == 0 else id)("),
    term("2.3", "not through one root", "    tensor.copy_(my_ring_all_gather(my_ring_reduce_scatter(filled))[:N])",
         "    my_tree_reduce(tensor, 0)\n    for r in range(1, n):\n        if dist.get_rank() == 0:\n"
         "            dist.send(tensor, r)\n        elif dist.get_rank() == r:\n            dist.recv(tensor, 0)"),
    term("2.4", "the sum arrives at dst", "v = (r - dst) % n", "v = r"),
    term("2.4", "the film runs backwards", "reversed(range(n.bit_length()))", "range(n.bit_length())"),
    term("2.4", "and adds where it copied", "tensor += received", "tensor.copy_(received)"),
    term("2.4", "any n", "if v < know and v + know < n", "if v < know"),
    term("2.4", "more than eight, too", "range(n.bit_length())", "range(min(3, n.bit_length()))"),
    term("2.4", "in place", "tensor += received", "tensor = tensor + received"),
    term("2.4", "ceil(log2 n) steps", TREE, IN_A_ROW),
    term("2.4", "every rank but dst sends once", TREE, TO_ALL),
    term("2.4", "dst receives few messages only", TREE, """    if v > 0:
        dist.send(tensor, dst)
    for other in range(1, n if v == 0 else 0):
        dist.recv(received, (r + other) % n)
        tensor += received"""),
    term("2.5", "chunk j goes to rank j", "exchange(chunks[to], to,", "exchange(chunks[r], to,"),
    term("2.5", "in the order of their senders", "places[source], source", "places[to], source"),
    term("2.5", "one piece stays", "places[r].copy_(chunks[r])", "places[r].zero_()"),
    term("2.5", "everyone gets one", "range(1, n)", "range(2, n)"),
    term("2.5", "every piece but the one that stays", "exchange(chunks[to], to, places[source], source)",
         "places[source].copy_(exchange(tensor, to, torch.empty_like(tensor), source).chunk(n)[r])"),
    term("2.6", "add up inside the node", "mine += exchange(other, neighbour, received, neighbour)", "pass"),
    term("2.6", "between the nodes", "mine += exchange(mine, twin, received, twin)", "pass"),
    term("2.6", "both halves in the end", "exchange(mine, neighbour, other, neighbour)", "pass"),
    term("2.6", "inside the node first",
         "    mine += exchange(other, neighbour, received, neighbour)\n"
         "    mine += exchange(mine, twin, received, twin)",
         "    tensor += exchange(tensor, twin, torch.empty_like(tensor), twin)\n"
         "    mine += exchange(other, neighbour, received, neighbour)"),
    term("2.6", "every rank only its half across", "mine += exchange(mine, twin, received, twin)",
         "received = exchange(tensor, twin, torch.empty_like(tensor), twin).chunk(2)[r % 2]\n    mine += received"),
    term("2.6", "every rank, not one for both", "    received = torch.empty_like(mine)",
         "    my_tree_reduce(tensor, 0)\n    if r > 0:\n        dist.recv(tensor, r - 1)\n    if r < 3:\n"
         "        dist.send(tensor, r + 1)\n    return\n    received = torch.empty_like(mine)"),
    term("2.7", "the ring takes 2(n-1) steps", "more_alphas = 2 * (n - 1)", "more_alphas = (n - 1)"),
    term("2.7", "doubling log2 n of them", "2 * (n - 1) - math.log2(n)", "2 * (n - 1)"),
    term("2.7", "in which all that it has is sent", "math.log2(n) - 2 * (n - 1) / n", "1 - 2 * (n - 1) / n"),
    term("2.7", "the ring sends an n-th in each", "2 * (n - 1) / n", "2 * (n - 1)"),
    term("2.7", "math.inf where it never is", "return math.inf", "return 0"),
    term("2.7", "two ranks", "if more_betas == 0:", "if False:"),
    term("2.7", "bytes", "(beta_s_per_byte * more_betas)", "(4 * beta_s_per_byte * more_betas)"),
    term("2.8", "which wires these rings use", "nvlink if num_nodes == 1 else min(nvlink, g * card)",
         "nvlink if num_nodes == 1 else min(nvlink, card)"),
    term("2.8", "a network card of its own", "min(nvlink, g * card)", "nvlink"),
    term("2.8", "which NVLink joins", "nvlink if num_nodes == 1 else min(nvlink, g * card)", "min(nvlink, g * card)"),
    term("2.8", "inside", "min(nvlink, g * card)", "g * card"),
    term("2.8", "around all devices", "(2 * (n - 1) / n)", "2"),
    term("2.8", "all-reduced", "(2 * (n - 1) / n)", "((n - 1) / n)"),
    term("2.8", "bf16", "num_bytes / 2", "num_bytes / 4"),
    term("2.8", "parameters, not bytes", "num_bytes / 2", "num_bytes"),
    term("2.8", "in so many seconds", "num_bytes = seconds * ", "num_bytes = 1 * "),
]
