TERMS = []
