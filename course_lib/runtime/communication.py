class CommunicationLog:
    pass
def record_communication(**named):
    raise NotImplementedError
