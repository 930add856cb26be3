"""Operations of the commands and of `import llmirage`: typed functions over settings; they print nothing."""
