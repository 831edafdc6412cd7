def lanes_figure(access): return ""
def lanes_text(access): return ""
