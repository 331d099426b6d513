"""The paper's experiments, run again and compared with the paper and with competitors."""
