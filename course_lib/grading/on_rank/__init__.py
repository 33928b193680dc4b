"""What runs beside a reader's function, and all of the grader that a rank can see.

No trial, no right answer, no budget and no hint: those are the judges', on the other side of the wall, and nothing here
imports them. What is here may be read and called by the function that is graded.

    plain.py    answers as plain data; numbers and tensors; calls of torch.distributed, counted
    models.py   a small model whose gradients are looked at; split.py: forward and backward of something that is cut
    CHAPTER.py  a function for each exercise: (the reader's function, the inputs of this rank) -> the answer
"""
