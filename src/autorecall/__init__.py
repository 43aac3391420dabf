"""autorecall"""
