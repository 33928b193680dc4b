class Timeline:
    pass
def record_timeline(**named):
    raise NotImplementedError
def span(name, **labels):
    raise NotImplementedError
